"""Counter-based randomness: a draw is a function of what it is for, never of what was drawn before.

There is no generator state to save or to lose: retries, workers and resume do not change a draw.
"""

import hashlib


def draw_seed(seed: int, *parts: str | int) -> int:
    """A 63-bit seed for one purpose: `draw_seed(run_seed, "ppo", "rollout", step)`.

    BLAKE2b over the parts with their lengths and types, so that `("ab", "c")` and `("a", "bc")` differ.

    >>> draw_seed(7, "ppo", 3) == draw_seed(7, "ppo", 3), draw_seed(7, "ppo", 3) == draw_seed(7, "ppo", "3")
    (True, False)
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, *parts):
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "big") + text)
    return int.from_bytes(digest.digest(), "big") >> 1


def keyed_permutation(count: int, *, seed: int) -> list[int]:
    """The numbers 0..count-1 in an order that only `seed` decides.

    Each index is ranked by its own hash, so the order does not depend on any library's generator.

    >>> sorted(keyed_permutation(5, seed=1)) == list(range(5))
    True
    """
    return sorted(range(count), key=lambda index: draw_seed(seed, "permutation", index))
