"""Instants as people read them.

Incarnations of publishers, lives of brokers and times of ticks are nanoseconds since 1970 in UTC.
Where a message compares two of them, it shows both as dates.
"""

from datetime import UTC, datetime

from anabranch.model.event import INT_MAX

_NS_PER_S = 1_000_000_000


def utc_text(time_ns: int) -> str:
    """The date and time of an instant, to the second."""
    assert 0 <= time_ns <= INT_MAX, time_ns
    return datetime.fromtimestamp(time_ns // _NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
