"""Durations as they are written in patterns: `5 s`, `250 ms`, `1.5 min`, `2 h`.

A duration is a whole number of nanoseconds. Rules:

1. The units are ms, s, min and h, in small letters. There is no default unit: a bare `5` would be
   five of whatever the reader thinks of.
2. Decimal fractions are taken exactly. What is no whole number of nanoseconds is refused.
3. The text of a duration is in the largest unit in which it is a whole number; below a
   millisecond, in ms with a fraction.
"""

from fractions import Fraction
from typing import Final

UNITS_NS: Final[dict[str, int]] = {
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}


def duration_of(number: str, unit: str) -> int | None:
    """Nanoseconds; None if they are no whole number. The unit is one of `UNITS_NS`."""
    exact = Fraction(number) * UNITS_NS[unit]
    return exact.numerator if exact.denominator == 1 else None


def duration_text(duration_ns: int) -> str:
    """The text of a duration, which reads back to the same."""
    for unit in ("h", "min", "s", "ms"):
        count, rest = divmod(duration_ns, UNITS_NS[unit])
        if rest == 0 and (count or unit == "ms"):
            return f"{count} {unit}"
    count, rest = divmod(duration_ns, UNITS_NS["ms"])
    return f"{count}.{rest:06d}".rstrip("0") + " ms"
