"""Money inside Charter: whole micro-USD, so that parts add up to totals exactly.

Rule: an amount is computed in floating point, turned into micro-USD once, rounding half to even on its
shortest decimal form, and only added as integers from then on.
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal

from charter.errors import UsageError
from charter.units import MICRO_USD_PER_USD


def micro_usd(usd: float) -> int:
    """Whole micro-USD of an amount, half to even.

    >>> micro_usd(12.34), micro_usd(0.0000005), micro_usd(0.0000015)
    (12340000, 0, 2)
    """
    amount = Decimal(repr(float(usd)))
    if not amount.is_finite():
        raise UsageError(f"{usd!r} is not an amount of money")
    return int((amount * MICRO_USD_PER_USD).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


def usd(micro: int) -> float:
    """US dollars of whole micro-USD.

    >>> usd(12340000)
    12.34
    """
    return micro / MICRO_USD_PER_USD


def split_micro_usd(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """`total` shared out by `weights` so that the shares add up to it: the largest remainders get the last
    units.

    >>> split_micro_usd(100, [1, 1, 1])
    (34, 33, 33)
    """
    total_weight = sum(weights)
    if total_weight <= 0 or min(weights) < 0:
        raise UsageError("a cost can only be shared by weights that are not negative and not all zero")
    exact = [total * weight / total_weight for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: (shares[index] - exact[index], index))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return tuple(shares)
