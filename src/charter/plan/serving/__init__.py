"""The ways to serve the models of a stage that only answers."""
