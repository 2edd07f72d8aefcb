"""A support agent that works a refund for order 48211: forty model steps, ten tool calls."""
