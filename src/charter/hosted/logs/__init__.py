"""Logs that other engines write while they train: one module an engine, from lines of text to logged steps."""
