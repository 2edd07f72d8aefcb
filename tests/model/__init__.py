"""The protocol of claims, intents and evidence as a model of explicit states, all explored."""
