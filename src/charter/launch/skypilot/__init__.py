"""SkyPilot: a pipeline as its task YAML, and its optimizer run on Charter's times and prices."""
