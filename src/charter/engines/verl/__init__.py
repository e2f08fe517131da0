"""Stages as configurations of verl: a YAML file that Hydra composes over verl's own, and its launch command."""
