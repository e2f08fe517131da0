"""One choice over all stages together, under deadline, budget, nodes and quotas."""
