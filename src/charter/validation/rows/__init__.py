"""One row of a table of measurements: its cells, and the model and machine that they name."""
