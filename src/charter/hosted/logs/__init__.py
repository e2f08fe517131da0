"""What other engines write while they train, read back: one module an engine, from lines of text to logged steps."""
