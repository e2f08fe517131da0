"""The web server that shows projects and runs, and the same pages as files."""
