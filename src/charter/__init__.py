"""Charter plans, runs and accounts for large-scale alignment training."""

__version__ = "0.1.0"
