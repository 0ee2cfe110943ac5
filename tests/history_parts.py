"""Pieces of hand-made histories: one publisher, one stream, one subscription unless told otherwise.

The event in tick n has sequence n and the attribute a = n; it is published at time n.
"""

from collections.abc import Mapping

from anabranch.check import history as saw

EVERYTHING: saw.PlainFilter = ((),)
HEALED, FINISHED = 100.0, 200.0
END: list[saw.Record] = [saw.Healed(HEALED), saw.Finished(FINISHED, ("o",))]


def published(
    sequence: int,
    *,
    time: float | None = None,
    optional: bool = False,
    transient: bool = False,
    time_limit_s: float | None = None,
    reach: tuple[str, ...] | None = None,
    destinations: tuple[str, ...] = (),
) -> saw.Published:
    at = float(sequence) if time is None else time
    kind = (optional, transient, time_limit_s, reach, destinations)
    return saw.Published(at, "p", 1, sequence, {"a": sequence}, "o", *kind)


def confirmed(sequence: int) -> saw.Confirmed:
    return saw.Confirmed(90.0, "p", 1, sequence)


def logged(tick: int, sequence: int | None = None, stream: str = "o") -> saw.Logged:
    return saw.Logged(stream, tick, "p", 1, tick if sequence is None else sequence)


def stream_of(*ticks: int) -> list[saw.Record]:
    """Events that are published, logged and confirmed as they should be."""
    newest = max(ticks, default=0)
    return [*map(published, ticks), *map(logged, ticks), confirmed(newest)]


def subscribed(
    plain: saw.PlainFilter = EVERYTHING,
    *,
    quality: saw.Quality = "reliable",
    time: float = 0.0,
    latest_start: Mapping[str, int] | None = None,
    start: str = "now",
    start_time: float = 0.0,
    edge: str = "",
    client: str = "",
) -> saw.Subscribed:
    starts = (start, edge, latest_start or {}, start_time, client)
    return saw.Subscribed(time, "s", plain, quality, *starts)


def started(tick: int) -> saw.Started:
    return saw.Started(0.0, "s", "o", tick)


def delivered(tick: int, sequence: int | None = None, stream: str = "o") -> saw.Delivered:
    return saw.Delivered(95.0, "s", stream, tick, "p", 1, tick if sequence is None else sequence)


def withheld(first: int, last: int, reason: str = "retention") -> saw.WithheldTold:
    return saw.WithheldTold(95.0, "s", "o", first, last, reason)


def ended(tick: int) -> saw.Ended:
    return saw.Ended(96.0, "s", "o", tick)


#: Published well after everything is healed and the subscription is made.
LATE: list[saw.Record] = [
    *stream_of(1),
    published(2, time=150.0),
    logged(2),
    saw.Confirmed(151.0, "p", 1, 2),
]
