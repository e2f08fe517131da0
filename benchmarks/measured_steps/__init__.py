"""The cases that `benchmarks/measure_steps.py` measures (grid), how (child processes), and the rows it writes."""
