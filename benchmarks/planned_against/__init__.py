"""The subjects of `benchmarks/planner_vs_engine.py`: cases, their plans, and their runs in the native engine."""
