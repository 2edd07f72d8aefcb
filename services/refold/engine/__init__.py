"""The engine: `decide` (pure), the run coroutines' driver, and the partition owner around them."""
