"""Seconds of whole things: a step of reinforcement learning, a run with its start, evaluation and failures."""
