"""Stages as configurations of NeMo RL: a complete YAML file for its example scripts, on its DTensor backend."""
