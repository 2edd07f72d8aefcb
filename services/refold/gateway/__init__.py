"""The process that takes commands and answers over HTTP: what the command line does, with roles."""
