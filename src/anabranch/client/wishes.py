"""What an application may ask of a subscription, and where it is to start.

    since="now"                          from the moment the network knows it
    since="beginning"                    from the oldest event that the logs still have
    since={"edge-1": 4711, …}            after these ticks; other streams from now on
    since=datetime(…, tzinfo=UTC)        from that time on, by the origins' clocks
    since=1_700_000_000_000_000_000      the same in nanoseconds since 1970

A durable subscription that exists goes on where it stands, whatever `since` says; that it does is
told by `Subscription.was_resumed`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec
from msgspec import structs

from anabranch.core.session.effects import Standing, StartKind
from anabranch.model.client_frames import Quality
from anabranch.model.errors import LocalError
from anabranch.model.filter import Filter, FilterSource
from anabranch.model.frame_parts import ITEMS_MAX
from anabranch.model.limits import Limits
from anabranch.model.names import check_name

Since = Literal["now", "beginning"] | Mapping[str, int] | datetime | int

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription as it was asked for."""

    name: str
    #: Canonical text.
    filter: str
    quality: Quality
    start: StartKind = "now"
    start_time_ns: int = 0
    start_ticks: Mapping[str, int] = {}
    window: int
    #: Whether the application acknowledges by itself.
    manual_ack: bool = False
    #: Of a durable one: made without asking whether it exists; never made, only come back to.
    is_new: bool = False
    must_exist: bool = False

    def renewed(self, kept: Standing) -> Standing:
        """What a former process knew of it, as this one wants it. It has nothing in hand."""
        return structs.replace(
            kept, filter=self.filter, received={}, window=self.window, manual_ack=True
        )


def read_wish(
    name: str,
    filter: str | FilterSource,
    limits: Limits,
    *,
    durable: str | None,
    quality: Literal["reliable", "best-effort"],
    since: Since,
    window: int,
    manual_ack: bool,
    is_new: bool,
    must_exist: bool,
) -> Wish:
    """What an application asks for; `name` is that of a subscription without one of its own."""
    start, time_ns, ticks = read_since(since)
    return Wish(
        name=name if durable is None else durable,
        filter=str(read_filter(filter, limits)),
        quality=quality if durable is None else "durable",
        start=start,
        start_time_ns=time_ns,
        start_ticks=ticks,
        window=check_window(window),
        manual_ack=manual_ack,
        is_new=is_new,
        must_exist=must_exist,
    )


def read_filter(filter: str | FilterSource, limits: Limits) -> Filter:
    """A filter, however it was given."""
    if isinstance(filter, str):
        return Filter.parse(filter, limits)
    return Filter.of(filter, limits)


def read_since(since: Since) -> tuple[StartKind, int, dict[str, int]]:
    """Start, time and ticks of what `since` says."""
    if since in ("now", "beginning"):
        return since, 0, {}  # type: ignore[return-value]  # it is one of the two
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise LocalError(
                f"since={since.isoformat()} has no time zone; give it one, such as UTC"
            )
        return "time", max(0, (since - _EPOCH) // timedelta(microseconds=1) * 1_000), {}
    if isinstance(since, int) and not isinstance(since, bool):
        if since < 0:
            raise LocalError(f"since={since} lies before 1970")
        return "time", since, {}
    if isinstance(since, Mapping):
        return "tick", 0, {stream: _tick(stream, tick) for stream, tick in since.items()}
    raise LocalError(
        f"since={since!r} is no start; give 'now', 'beginning', a mapping from streams to ticks,"
        " a datetime, or nanoseconds since 1970"
    )


def _tick(stream: str, tick: int) -> int:
    if type(tick) is not int or tick < 0:
        raise LocalError(f"since says tick {tick!r} of stream {stream!r}; ticks begin with 0")
    return tick


def check_existence(durable: str | None, new: bool, must_exist: bool) -> None:
    """What is said about whether a subscription exists makes sense."""
    if must_exist and durable is None:
        raise LocalError("must_exist is about a durable subscription; say which with durable=…")
    if must_exist and new:
        raise LocalError(f"durable subscription {durable!r} cannot both be new and exist")


def check_durable(name: str, quality: str, is_named: bool, limits: Limits) -> None:
    """A durable subscription can be had, and come back to."""
    check_name(name, "durable", limits.name_bytes_max)
    if quality != "reliable":
        raise LocalError(f"a durable subscription is reliable; {quality} cannot be durable")
    if not is_named:
        raise LocalError(
            f"the durable subscription {name!r} belongs to a client, and this one has no name"
            " to come back with; connect with name=…"
        )


def check_window(window: int) -> int:
    """A window that frames can tell."""
    if not 1 <= window <= ITEMS_MAX:
        raise LocalError(f"a window of {window} events is impossible; give 1 to {ITEMS_MAX}")
    return window
