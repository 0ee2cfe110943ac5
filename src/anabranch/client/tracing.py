"""Traces: what a client was told, written down for the checker.

Every record of `check.history` that concerns a client is appended to a file as one line of JSON.
Rules:

1. What is published is written before it is sent, and all lines with one write, so a trace of a
   killed process lacks nothing that others may have seen, but perhaps the end of a line.
2. Deliveries are gathered for one turn of the event loop. If the last of them are lost with the
   process, the history says less; it says nothing wrong.
3. A trace that is opened again belongs to a process that is gone: a torn line is removed, and what
   it left open (episodes, unconfirmed events) is declared over before anything else is written.
4. Times are those of the machine's clock.

The checker needs the logs of the brokers beside it (`Logged`).
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

_MOST = float_info.max
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[saw.AnyRecord] = msgspec.json.Decoder(saw.AnyRecord)


def _records(path: Path) -> Iterator[saw.Record]:
    """The records of a trace; a torn line at its end is left out."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _decoder.decode(line)
            except msgspec.DecodeError as error:
                raise LocalError(f"{path}: line {number} is no record: {error}") from None


class Trace:
    """The trace of one client. See the rules at the top of this module."""

    def __init__(self, path: Path) -> None:
        left_over = _left_over(path) if path.exists() else []
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lines: list[bytes] = []
        self._write(left_over)

    def published(self, events: Sequence[Event], ids: Sequence[EventId], broker: str) -> None:
        """These events are about to be sent."""
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
            )
            for event, event_id in zip(events, ids, strict=True)
        ]
        self._write(records)

    def confirmed(self, publisher: str, incarnation: int, sequence: int) -> None:
        """Events up to this one are safe."""
        self._write([saw.Confirmed(time.time(), publisher, incarnation, sequence)])

    def abandoned(self, publisher: str, incarnation: int) -> None:
        """What is unconfirmed of this incarnation may remain so."""
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
        """A subscription was asked for."""
        asked = (episode, filter_text, quality, start, edge, latest_start)
        self._write([saw.Subscribed(time.time(), *asked)])

    def started(self, episode: str, stream: str, tick: int) -> None:
        """The application was told a start."""
        self._write([saw.Started(time.time(), episode, stream, tick)])

    def delivered(self, episode: str, stream: str, tick: int, event_id: EventId) -> None:
        """The application was given an event."""
        name = (event_id.publisher, event_id.incarnation, event_id.sequence)
        self._later(saw.Delivered(time.time(), episode, stream, tick, *name))

    def withheld(self, episode: str, stream: str, span: tuple[int, int], reason: str) -> None:
        """The application was told that ticks will not come."""
        self._later(saw.WithheldTold(time.time(), episode, stream, *span, reason))

    def ended(self, episode: str, ticks: Mapping[str, int]) -> None:
        """The application has everything up to these ticks, and wants no more."""
        now = time.time()
        ends = [saw.Ended(now, episode, stream, tick) for stream, tick in ticks.items()]
        self._write([*ends, saw.Cut(now, episode)])

    def cut(self, episode: str) -> None:
        """Nothing more is promised to this episode."""
        self._write([saw.Cut(time.time(), episode)])

    def close(self) -> None:
        """Write the rest."""
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
    """Whether a subscription whose filter matches may have to do without the event."""
    control = event.control
    return (
        control.persistence == "transient"
        or control.time_limit_ns is not None
        or control.hop_limit is not None
        or control.level_limit is not None
        or bool(control.destinations)
    )


def written(event: Event) -> dict[str, Value]:
    """The attributes as JSON can say them: it knows neither NaN, which matches nothing, nor an
    infinite number, for which the greatest finite one stands."""
    return {
        name: value if not isinstance(value, float) or isfinite(value) else copysign(_MOST, value)
        for name, value in event.attributes.items()
        if value == value
    }


def _left_over(path: Path) -> list[saw.Record]:
    """Remove a torn line; what the process that wrote the rest has left open."""
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
    return [*cuts, *(saw.Abandoned(now, *life) for life in published)]


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
