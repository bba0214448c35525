"""The command line: one module per command. A command parses options, calls the package and prints."""
