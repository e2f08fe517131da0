"""The user's request: `charter.yaml` as frozen values, read and checked."""

PROJECT_FILE = "charter.yaml"
"""In the directory of a project."""
