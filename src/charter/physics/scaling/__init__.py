"""Scaling laws: loss from size and tokens, fits to small runs, and what a budget buys."""
