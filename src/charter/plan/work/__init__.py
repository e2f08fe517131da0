"""What a stage does: its roles, phases and counters, from its fields and its data."""
