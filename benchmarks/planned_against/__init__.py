"""What `benchmarks/planner_vs_engine.py` compares: cases, their plans, and their runs in the native engine."""
