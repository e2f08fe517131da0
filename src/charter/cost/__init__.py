"""The usd of a job, a budget, a price: pure functions."""
