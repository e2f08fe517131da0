"""The verbs of the command line: parse, call, print."""
