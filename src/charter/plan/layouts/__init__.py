"""The exhaustive search over training layouts."""
