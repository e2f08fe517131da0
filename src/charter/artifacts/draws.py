"""Counter-based randomness: a draw is a function of what it is for, never of what was drawn before.

There is no generator state to save or to lose: retries, workers and resume do not change a draw.
"""

import functools
import hashlib
import math

ROUNDS = 6
"""Rounds of the network of `permuted`."""
SMALL = 256
"""Up to here an order is a sorted list: rounds over a few cells do not make all orders equally likely."""
_WORD = (1 << 64) - 1


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


def permuted(index: int, count: int, *, seed: int) -> int:
    """The number at place `index` of the numbers 0..count-1 in an order that only `seed` decides, in O(1).

    A number is written as a pair (left, right) of a rectangle of `height * width >= count` cells; every round adds
    to one half a hash of the other, modulo its size, which can be undone; a result outside 0..count-1 is permuted
    again. Fewer than `height` cells are outside, so that once is nearly always enough. Counts up to `SMALL` are
    ranked by a hash of each number instead.

    Source: Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains" (CT-RSA), generalised Feistel network and
    cycle walking; the hash is SplitMix64's finalizer (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number
    Generators", OOPSLA, with the constants of Stafford's variant 13). It makes orders look random; it keeps no secret.

    >>> [permuted(index, 5, seed=1) for index in range(5)]
    [3, 1, 4, 0, 2]
    """
    if not 0 <= index < count:
        raise IndexError(f"place {index} of {count}")
    if count <= SMALL:
        return _ranked(count, seed)[index]
    height, width, keys = _rectangle(count, seed)
    while True:
        left, right = divmod(index, width)
        for turn, key in enumerate(keys):
            word = ((left if turn & 1 else right) + key) & _WORD
            word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
            word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
            word ^= word >> 31
            if turn & 1:
                right = (right + word) % width
            else:
                left = (left + word) % height
        index = left * width + right
        if index < count:
            return index


def keyed_permutation(count: int, *, seed: int) -> list[int]:
    """The numbers 0..count-1 in an order that only `seed` decides.

    >>> sorted(keyed_permutation(5, seed=1)) == list(range(5))
    True
    """
    return [permuted(index, count, seed=seed) for index in range(count)]


@functools.lru_cache(maxsize=64)
def _rectangle(count: int, seed: int) -> tuple[int, int, tuple[int, ...]]:
    """Sides of the smallest near-square with room for `count`, and one key per round from the seed."""
    height = math.isqrt(count - 1) + 1
    keys = tuple(draw_seed(seed, "permutation", turn) for turn in range(ROUNDS))
    return height, -(-count // height), keys


@functools.lru_cache(maxsize=64)
def _ranked(count: int, seed: int) -> tuple[int, ...]:
    """A few numbers, sorted by a hash of each."""
    return tuple(sorted(range(count), key=lambda index: draw_seed(seed, "permutation", index)))
