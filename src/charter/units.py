"""Constants, parsing and printing of bytes, durations, money and counts.

Inside Charter a size is in bytes, a time in seconds, work in flops and money in usd. Other units exist only
here (reading what people write) and in reports (printing what people read).
"""

import math
import re
import time
from math import floor, log10
from typing import Literal

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
TERA = 1e12
SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 86400.0
HOURS_PER_MONTH = 730.0
"""Mean hours in a month (8,760 / 12), the convention of cloud storage prices."""
HOURS_PER_YEAR = 8760.0
SECONDS_PER_MONTH = HOURS_PER_MONTH * SECONDS_PER_HOUR
MICRO_USD_PER_USD = 1_000_000
LEAST_USD = 1e-4
"""Less money than this is printed as less."""

_BYTE_UNITS = {
    "b": 1,
    "kb": KB,
    "mb": MB,
    "gb": GB,
    "tb": TB,
    "pb": 10**15,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "pib": 2**50,
}
_SECOND_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
"""By the first letter of a unit's name."""
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?"
"""A comma groups thousands and does nothing else: `1,50` is one and a half to many people, and 150 to nobody."""
THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?")
"""A number in a table whose commas group thousands; one with another comma may have a decimal comma, and is refused."""
_NUMBER = rf"({_DIGITS}(?:[eE][+-]?[0-9]+)?)"


def _number(text: str) -> float:
    return float(text.replace("_", "").replace(",", ""))


def _match(pattern: str, text: object, what: str, example: str) -> re.Match[str]:
    match = re.fullmatch(pattern, str(text).strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not {what}; write it like {example}")
    return match


def parse_bytes(value: object) -> int:
    """Bytes of `"80GB"` (decimal), `"64GiB"` (binary) or a plain number of bytes.

    >>> parse_bytes("80GB"), parse_bytes("1.5 GiB"), parse_bytes(1024)
    (80000000000, 1610612736, 1024)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _whole(value, "a number of bytes")
    match = _match(rf"{_NUMBER}\s*([kKmMgGtTpP]?i?[bB])", value, "a size", "80GB or 64GiB")
    return _whole(_number(match[1]) * _BYTE_UNITS[match[2].lower()], "a size in whole bytes")


def parse_bytes_per_second(value: object) -> float:
    """Bytes per second of `"25Gbit/s"` (networks), `"3 GB/s"` or a plain number of bytes per second.

    >>> parse_bytes_per_second("25Gbit/s"), parse_bytes_per_second("3GB/s"), parse_bytes_per_second("100 gbps")
    (3125000000.0, 3000000000.0, 12500000000.0)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f"{value!r} is not the speed of a network; write it like 25Gbit/s")
        return float(value)
    match = _match(rf"{_NUMBER}\s*([kKmMgGtT])(bit/s|bps|B/s)", value, "the speed of a network", "25Gbit/s or 3GB/s")
    unit = 1 if match[3] == "B/s" else 8
    return _number(match[1]) * 1000.0 ** (1 + "kmgt".index(match[2].lower())) / unit


def parse_seconds(value: object) -> float:
    """Seconds of `"14d"`, `"2h30m"`, `"90s"` or a plain number of seconds.

    >>> parse_seconds("14d"), parse_seconds("2h30m"), parse_seconds(45), parse_seconds("3 days")
    (1209600.0, 9000.0, 45.0, 259200.0)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"{value!r} is not a duration; write it like 14d, 2h30m or 90s")
        return _seconds(float(value))
    unit = r"(?:sec(?:ond)?s?|min(?:ute)?s?|hours?|days?|weeks?|[smhdw])"
    part = rf"{_DIGITS}\s*{unit}"
    match = _match(rf"{part}(?:\s*{part})*", value, "a duration", "14d, 2h30m or 90s")
    pieces = re.findall(rf"({_DIGITS})\s*([smhdw])", match[0])
    return _seconds(sum(_number(count) * _SECOND_UNITS[letter] for count, letter in pieces))


MAX_SECONDS = 1e11
"""Of any duration: three thousand years."""


def _seconds(value: float) -> float:
    if value > MAX_SECONDS:
        raise ValueError(f"{value:.3g} s is more than {MAX_SECONDS:.0e} s, the longest of any duration")
    return value


def short(value: "int | str | None") -> "int | str | None":
    """Return a number as people write it.

    >>> short(100_000_000), short(4_300_000), short(60_000), short(2_048), short("8B")
    ('100M', '4.3M', '60k', 2048, '8B')
    """
    if isinstance(value, int):
        for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
            if value >= unit and value % (unit // 10) == 0:
                return f"{value / unit:g}{letter}"
    return value


def parse_usd(value: object) -> float:
    """US dollars of `"$25_000"`, `"$1.5k"` or a plain number.

    >>> parse_usd("$25_000"), parse_usd("$1.5k"), parse_usd(12)
    (25000.0, 1500.0, 12.0)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"{value!r} is not an amount of money; write it like $25_000")
        return _usd(float(value))
    match = _match(rf"\$?\s*{_NUMBER}\s*([kKmM]?)", value, "an amount of money", "$25_000")
    return _usd(_number(match[1]) * _COUNT_UNITS[match[2].lower()])


MAX_USD = 1e12
"""Of anything that is paid: a hundredth of what the world earns in a year."""


def _usd(value: float) -> float:
    if value > MAX_USD:
        raise ValueError(f"{value:.3g} is more than {MAX_USD:.0e}, the most usd of anything")
    return value


def parse_usd_per_hour(value: object) -> float:
    """US dollars per hour of `"$3.50/h"`, `"$3.5"` or a plain number.

    >>> parse_usd_per_hour("$3.50/h"), parse_usd_per_hour(2)
    (3.5, 2.0)
    """
    if isinstance(value, str):
        value = re.sub(r"\s*/\s*(h|hr|hour)$", "", value.strip())
    return parse_usd(value)


MAX_COUNT = 10**15
"""Of anything that is counted: 60 times the tokens of the largest published run (15 trillion)."""


def parse_count(value: object) -> int:
    """A whole number of `"150_000"`, `"1.4T"`, `"4k"` or an int; refuses fractions, and more than a thousand trillion.

    >>> parse_count("150_000"), parse_count("1.4T"), parse_count(7)
    (150000, 1400000000000, 7)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _count(value)
    match = _match(rf"{_NUMBER}\s*([kKmMbBtT]?)", value, "a whole number", "150_000, 4k or 100M")
    return _count(_number(match[1]) * _COUNT_UNITS[match[2].lower()])


def _count(value: float) -> int:
    if value > MAX_COUNT:
        raise ValueError(f"{value:.3g} is more than {MAX_COUNT:.0e}, the most of anything that is counted")
    return _whole(value, "a whole number")


def _whole(value: float, what: str) -> int:
    if value < 0:
        raise ValueError(f"{value!r} is negative; give {what}")
    if not math.isfinite(value) or abs(value - round(value)) > 1e-6:
        raise ValueError(f"{value!r} is not {what}")
    return round(value)


def format_bytes(num_bytes: float) -> str:
    """Bytes as a reader wants them, in binary units.

    >>> format_bytes(85899345920), format_bytes(512)
    ('80.0 GiB', '512 B')
    """
    for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:.0f} B"


def format_pace(event: str, seconds: float) -> str:
    """Return how often something happens on average; `no ...s` where it never does.

    >>> format_pace("failure", 200_000.0), format_pace("failure", float("inf"))
    ('a failure every 2 d 8 h', 'no failures')
    """
    return f"no {event}s" if seconds == math.inf else f"a {event} every {format_seconds(seconds)}"


def format_seconds(seconds: float) -> str:
    """A duration in its two largest units; `never` where it has no end.

    >>> format_seconds(12.34), format_seconds(5025), format_seconds(200000), format_seconds(float("inf"))
    ('12.3 s', '1 h 24 min', '2 d 8 h', 'never')
    """
    if seconds == math.inf:
        return "never"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    for limit, large, small, per in (
        (3600, "min", "s", 60),
        (86400, "h", "min", 3600),
        (float("inf"), "d", "h", 86400),
    ):
        small_seconds = {"s": 1, "min": 60, "h": 3600}[small]
        rounded = round(seconds / small_seconds) * small_seconds
        if rounded < limit:
            return f"{rounded // per} {large} {rounded % per // small_seconds} {small}"
    raise AssertionError("every finite duration is below the last limit")


def format_usd(usd: float | None) -> str:
    """Money, or `unpriced` where no price is known: cents from ten of them on, two digits below, never a rounded zero.

    >>> format_usd(1349.4), format_usd(0.4), format_usd(0.01234), format_usd(0.00012), format_usd(None)
    ('$1,349', '$0.40', '$0.012', '$0.00012', 'unpriced')
    >>> format_usd(3e-6), format_usd(-12.5), format_usd(0)
    ('< $0.0001', '-$12.50', '$0')
    """
    if usd is None:
        return "unpriced"
    if usd == 0:
        return "$0"
    size, sign = abs(usd), "-" if usd < 0 else ""
    if size < LEAST_USD:
        return f"< ${LEAST_USD:g}"
    if size >= 100:
        return f"{sign}${size:,.0f}"
    if size >= 0.1:
        return f"{sign}${size:,.2f}"
    return f"{sign}${size:.{1 - floor(log10(size))}f}".rstrip("0")


def seconds_between(started_at: float, ended_at: float | None) -> float | None:
    """Return the seconds from a start to an end by the clock, which may have been set back; None before the end."""
    return None if ended_at is None else max(0.0, ended_at - started_at)


def format_moment(unix_seconds: float, *, to: Literal["minute", "second"] = "minute") -> str:
    """A moment for people, in UTC as everywhere in Charter.

    >>> format_moment(90.0), format_moment(90.0, to="second")
    ('1970-01-01 00:01 UTC', '1970-01-01 00:01:30 UTC')
    """
    return time.strftime(f"%Y-%m-%d %H:%M{':%S' if to == 'second' else ''} UTC", time.gmtime(unix_seconds))


def format_ratio(ratio: float) -> str:
    """A time over another as a share of that other, in words.

    >>> format_ratio(1.04), format_ratio(0.98), format_ratio(1.002)
    ('4 % longer', '2 % shorter', 'as long')
    """
    percent = round(100 * (ratio - 1))
    return "as long" if percent == 0 else f"{abs(percent)} % {'longer' if percent > 0 else 'shorter'}"


def format_machines(accelerator: str, per_node: int, nodes: int = 1) -> str:
    """Accelerators of one machine, or of several: a number of nodes is never without the word.

    >>> format_machines("H100", 8, 4), format_machines("H100", 8)
    ('4 nodes x 8 H100', '8 x H100')
    """
    return f"{nodes:,} nodes x {per_node} {accelerator}" if nodes > 1 else f"{per_node} x {accelerator}"


def format_count(count: float) -> str:
    """A count with a magnitude letter.

    >>> format_count(8_030_000_000), format_count(1_280_000), format_count(950)
    ('8.03 B', '1.28 M', '950')
    """
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**4)):
        if abs(count) >= size:
            return f"{count / (10**3 if unit == 'k' else size):.3g} {unit}"
    return f"{count:,.0f}"
