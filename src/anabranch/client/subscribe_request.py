"""The arguments of `subscribe`, checked and converted.

A mistake in them raises an error with the remedy before anything is sent.

Stateless.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import msgspec
from msgspec import structs

from anabranch.client.keyword_hints import check_choice
from anabranch.core.session.effects import ResumePoint, StartKind
from anabranch.model.client_frames import Quality
from anabranch.model.errors import LocalError
from anabranch.model.filter import Filter, FilterSource
from anabranch.model.frame_parts import ITEMS_MAX
from anabranch.model.limits import Limits
from anabranch.model.names import check_name
from anabranch.model.timestamps import nanoseconds_of

#: Where a subscription starts: now, at the oldest event of each log, after these ticks, at this
#: time, or at these nanoseconds since 1970.
Since = Literal["now", "beginning"] | Mapping[str, int] | datetime | int


class SubscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one subscription."""

    name: str
    #: Canonical text.
    filter: str
    quality: Quality
    start: StartKind = "now"
    start_time_ns: int = 0
    start_ticks: Mapping[str, int] = {}
    window: int
    #: Whether the application acknowledges explicitly.
    manual_ack: bool = False
    #: Of a durable subscription: create it without a lookup; or only resume it, never create it.
    is_new: bool = False
    must_exist: bool = False

    def renewed(self, kept: ResumePoint) -> ResumePoint:
        """Return the resume point of an earlier process, adapted to this request.

        This process has received nothing yet, so `received` is empty.
        """
        return structs.replace(
            kept, filter=self.filter, received={}, window=self.window, manual_ack=True
        )


def subscribe_request(
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
) -> SubscribeRequest:
    """Validate the arguments of `subscribe`.

    `name` is used for a subscription that is not durable.
    """
    check_choice("quality", quality, Literal["reliable", "best-effort"])
    start, time_ns, ticks = read_since(since)
    return SubscribeRequest(
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
    """Parse or normalize a filter."""
    if isinstance(filter, str):
        return Filter.parse(filter, limits)
    return Filter.of(filter, limits)


def read_since(since: Since) -> tuple[StartKind, int, dict[str, int]]:
    """Return the start kind, time and ticks that `since` stands for."""
    if since in ("now", "beginning"):
        return since, 0, {}  # type: ignore[return-value]  # it is one of the two
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise LocalError(
                f"since={since.isoformat()} has no time zone; give it one, such as UTC"
            )
        return "time", max(0, nanoseconds_of(since)), {}
    if isinstance(since, int) and not isinstance(since, bool):
        if since < 0:
            raise LocalError(f"since={since} is before 1970")
        return "time", since, {}
    if isinstance(since, Mapping):
        return "tick", 0, {stream: _tick(stream, tick) for stream, tick in since.items()}
    raise LocalError(
        f"since={since!r} is invalid; give 'now', 'beginning', a mapping from streams to ticks,"
        " a datetime, or nanoseconds since 1970"
    )


def _tick(stream: str, tick: int) -> int:
    if type(tick) is not int or tick < 0:
        raise LocalError(
            f"since has tick {tick!r} for stream {stream!r}; give an integer from 0 on"
        )
    return tick


def check_existence(durable: str | None, new: bool, must_exist: bool) -> None:
    """Raise `LocalError` if `new` and `must_exist` contradict the other arguments."""
    if must_exist and durable is None:
        raise LocalError("must_exist requires a durable subscription; name it with durable=…")
    if must_exist and new:
        raise LocalError(f"durable subscription {durable!r} cannot both be new and exist")


def check_durable(name: str, quality: str, is_named: bool, limits: Limits) -> None:
    """Raise `LocalError` if this client cannot own the durable subscription."""
    check_name(name, "durable", limits.name_bytes_max)
    if quality != "reliable":
        raise LocalError(f"a {quality} subscription cannot be durable; use quality='reliable'")
    if not is_named:
        raise LocalError(
            f"durable subscription {name!r} needs a named client to resume it; connect with name=…"
        )


def check_window(window: int) -> int:
    """Return the window; raise `LocalError` if it is out of range."""
    if not 1 <= window <= ITEMS_MAX:
        raise LocalError(f"window={window} is out of range; give 1 to {ITEMS_MAX} events")
    return window
