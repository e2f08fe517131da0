"""The user's request: `charter.yaml` as frozen values, read and checked."""
