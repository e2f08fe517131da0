"""A reward that says nothing of the answer: what a policy gains by it, it gains without a signal."""

import random


def by_lot(seed: int) -> float:
    """1 for half of the answers, drawn by the seed of the answer."""
    return float(random.Random(seed).random() < 0.5)
