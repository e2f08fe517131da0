"""Work of a stage: its roles, phases and counters, from its fields and its data."""
