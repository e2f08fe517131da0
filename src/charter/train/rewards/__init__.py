"""Rewards of a list: shipped functions, the user's functions in processes of their own, models, and their sum."""
