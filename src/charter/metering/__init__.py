"""What the processes of a stage use of their machines, and what those draw: samples, their files, their sums."""
