"""What is said: events, commands and the values in them, their Avro schemas, codec and registry."""
