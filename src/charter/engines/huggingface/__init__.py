"""TRL's trainers, alone, on Accelerate or on DeepSpeed, as their configuration files."""
