"""What the user asks: `charter.yaml` as frozen values, read and checked."""
