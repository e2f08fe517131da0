"""The web server that shows a run."""
