"""Use of machines by a stage's processes, and the power drawn: samples, their files, their sums."""
