"""Readable timestamps for messages.

Incarnations of publishers, lives of brokers and times of ticks are nanoseconds since 1970 in UTC. A
message that compares two of them shows both as dates.
"""

from datetime import UTC, datetime

from anabranch.model.event import INT_MAX

_NS_PER_S = 1_000_000_000


def utc_text(time_ns: int) -> str:
    assert 0 <= time_ns <= INT_MAX, time_ns
    return datetime.fromtimestamp(time_ns // _NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
