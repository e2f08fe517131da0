"""Shared by all engines: their tables of capabilities, the mapping of fields, adapters, files and logs."""
