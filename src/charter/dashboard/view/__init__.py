"""View models: from what was read to what a template prints. Pure."""
