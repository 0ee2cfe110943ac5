"""Traces: the observations of a client, recorded for the checker.

Every record of `check.history` that concerns a client is appended to a file as one line of JSON.
Rules:

1. Published events are recorded before they are sent, with one write for all of them. The trace of
   a killed process therefore contains every event that others may have seen; only its last line may
   be torn.
2. Deliveries are coalesced for one turn of the event loop. If the last ones are lost with the
   process, the history is shorter but not wrong.
3. A trace that is reopened belongs to a dead process. A torn line is removed, and open episodes and
   unconfirmed events are closed before anything else is written.
4. Times are those of the machine's clock.

The checker also needs the logs of the brokers (`Logged`).
"""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from math import copysign, isfinite
from pathlib import Path
from sys import float_info

import msgspec

from anabranch.check import history as saw
from anabranch.model.errors import LocalError
from anabranch.model.event import Event, EventId, Value

_FLOAT_MAX = float_info.max
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[saw.AnyRecord] = msgspec.json.Decoder(saw.AnyRecord)


def _records(path: Path) -> Iterator[saw.Record]:
    """Yield the records of a trace, without a torn last line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _decoder.decode(line)
            except msgspec.DecodeError as error:
                raise LocalError(f"{path}: line {number} is not a record: {error}") from None


class Trace:
    """The trace of one client. See the rules at the top of this module."""

    def __init__(self, path: Path) -> None:
        left_over = _left_over(path) if path.exists() else []
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lines: list[bytes] = []
        self._write(left_over)

    def published(
        self, events: Sequence[Event], ids: Sequence[EventId], broker: str, ordered_from: int = 0
    ) -> None:
        """Record events that are about to be sent."""
        now = time.time()
        records = [
            saw.Published(
                now,
                event_id.publisher,
                event_id.incarnation,
                event_id.sequence,
                written(event),
                broker,
                is_optional(event),
                ordered_from=ordered_from,
            )
            for event, event_id in zip(events, ids, strict=True)
        ]
        self._write(records)

    def confirmed(self, publisher: str, incarnation: int, sequence: int) -> None:
        """Record that events up to this one are confirmed."""
        self._write([saw.Confirmed(time.time(), publisher, incarnation, sequence)])

    def abandoned(self, publisher: str, incarnation: int) -> None:
        """Record that unconfirmed events of this incarnation may stay unconfirmed."""
        self._write([saw.Abandoned(time.time(), publisher, incarnation)])

    def subscribed(
        self,
        episode: str,
        filter_text: str,
        quality: saw.Quality,
        start: str,
        edge: str,
        *,
        latest_start: Mapping[str, int],
    ) -> None:
        """Record a request for a subscription."""
        asked = (episode, filter_text, quality, start, edge, latest_start)
        self._write([saw.Subscribed(time.time(), *asked)])

    def started(self, episode: str, stream: str, tick: int) -> None:
        """Record a start reported to the application."""
        self._write([saw.Started(time.time(), episode, stream, tick)])

    def delivered(self, episode: str, stream: str, tick: int, event_id: EventId) -> None:
        """Record an event delivered to the application."""
        name = (event_id.publisher, event_id.incarnation, event_id.sequence)
        self._later(saw.Delivered(time.time(), episode, stream, tick, *name))

    def withheld(self, episode: str, stream: str, span: tuple[int, int], reason: str) -> None:
        """Record a withheld range reported to the application."""
        self._later(saw.WithheldTold(time.time(), episode, stream, *span, reason))

    def order_not_kept(self, episode: str, stream: str, tick: int, event_id: EventId) -> None:
        """Record a notice about the order of an event."""
        name = (event_id.publisher, event_id.incarnation)
        self._later(saw.OrderNotKept(time.time(), episode, stream, tick, *name))

    def ended(self, episode: str, ticks: Mapping[str, int]) -> None:
        """Record that the application has everything up to these ticks and ended the
        subscription.
        """
        now = time.time()
        ends = [saw.Ended(now, episode, stream, tick) for stream, tick in ticks.items()]
        self._write([*ends, saw.Cut(now, episode)])

    def cut(self, episode: str) -> None:
        """Record the end of an episode."""
        self._write([saw.Cut(time.time(), episode)])

    def close(self) -> None:
        """Write pending records and close the file."""
        self._write([])
        os.close(self._file)
        self._file = -1

    # -- writing --------------------------------------------------------------------------------

    def _later(self, record: saw.Record) -> None:
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._write, [])
        self._lines.append(_encoder.encode(record))

    def _write(self, records: Sequence[saw.Record]) -> None:
        lines = self._lines + [_encoder.encode(record) for record in records]
        self._lines = []
        if not lines or self._file < 0:
            return
        data = b"\n".join(lines) + b"\n"
        while data:
            data = data[os.write(self._file, data) :]


def is_optional(event: Event) -> bool:
    """Return whether the event may legitimately be missing for a matching subscription."""
    control = event.control
    return (
        control.persistence == "transient"
        or control.time_limit_ns is not None
        or control.hop_limit is not None
        or control.level_limit is not None
        or bool(control.destinations)
    )


def written(event: Event) -> dict[str, Value]:
    """Return the attributes in a form that JSON can represent.

    NaN matches nothing and is left out; an infinite number is replaced by the largest finite one.
    """
    return {
        name: value
        if not isinstance(value, float) or isfinite(value)
        else copysign(_FLOAT_MAX, value)
        for name, value in event.attributes.items()
        if value == value
    }


def _left_over(path: Path) -> list[saw.Record]:
    """Remove a torn line and return records that close what the previous process left open."""
    _cut_torn_line(path)
    open_episodes: dict[str, None] = {}
    published: dict[tuple[str, int], int] = {}
    for record in _records(path):
        match record:
            case saw.Subscribed():
                open_episodes[record.subscription] = None
            case saw.Cut():
                open_episodes.pop(record.subscription, None)
            case saw.Published():
                published[record.publisher, record.incarnation] = record.sequence
            case saw.Confirmed():
                if published.get((record.publisher, record.incarnation), 0) <= record.sequence:
                    published.pop((record.publisher, record.incarnation), None)
            case saw.Abandoned():
                published.pop((record.publisher, record.incarnation), None)
    now = time.time()
    cuts = [saw.Cut(now, episode) for episode in open_episodes]
    return [
        *cuts,
        *(saw.Abandoned(now, *key) for key in published),
    ]


def _cut_torn_line(path: Path) -> None:
    with path.open("r+b") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end:
            file.seek(end - 1)
            if file.read(1) == b"\n":
                break
            end -= 1
        if end < size:
            file.truncate(end)
