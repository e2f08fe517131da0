"""Engines of other projects, a folder each: capabilities, configuration files, checkpoints and logs, without torch."""
