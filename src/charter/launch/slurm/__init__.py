"""Slurm: batch scripts rendered from jobs, and its commands (`sbatch`, `squeue`, `sacct`, `scontrol`, `scancel`)."""
