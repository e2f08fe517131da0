"""Stages as tasks of a Ray cluster: rendered purely, started by a keeper in the cluster, watched through a bridge."""
