"""The training engine: one module for each kind of stage that trains, on one resumable loop."""
