"""The projects that `charter init` writes."""
