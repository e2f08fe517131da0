"""Bytes on one accelerator: of training by phase and pipeline stage, of answering, of PPO by role."""
