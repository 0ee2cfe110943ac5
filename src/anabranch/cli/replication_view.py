"""The copies of all streams of a network, from the status of its brokers.

A stream is described by its origin; the brokers that keep it add what they have. If the origin does
not answer, the copies that others keep are all that is known, and the network file says how many
there should be. `status` and `replication show` print this.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from rich.table import Table

from anabranch.cli.output import iso_time
from anabranch.cli.screen import Column, fitted
from anabranch.core.replication.report import (
    CopyReport,
    CopyState,
    KeptCopyReport,
    OwnCopiesReport,
)
from anabranch.node.status import Status

_STREAMS = (
    Column("stream"),
    Column("state", rank=2),
    Column("copies", is_number=True),
    Column("confirm", rank=4, is_number=True),
    Column("confirmed", rank=1, is_number=True),
    Column("newest", rank=3, is_number=True),
    Column("lag of keepers"),
)
_COPIES = (
    Column("stream"),
    Column("copy at"),
    Column("state"),
    Column("since", rank=4),
    Column("acked", is_number=True),
    Column("lag", is_number=True),
    Column("keeps", rank=1, is_number=True),
    Column("knows confirmed", rank=3, is_number=True),
    Column("notes", rank=2),
)


class CopyView(msgspec.Struct, frozen=True, kw_only=True):
    """One copy of a stream."""

    broker: str
    #: As its origin says, or `down`: its broker does not answer. `kept`: the origin does not answer
    #: or does not know of it yet; `unneeded`: the origin has other copies.
    state: CopyState | Literal["down", "kept", "unneeded"]
    is_configured: bool
    since: int = 0
    #: None if unknown.
    acked: int | None = None
    lag: int | None = None
    #: What the broker of the copy says of it; None if it does not answer or is the origin.
    kept: KeptCopyReport | None = None


class StreamView(msgspec.Struct, frozen=True, kw_only=True):
    """The copies of one stream."""

    stream: str
    #: `core.replication.writer.State`, or `down` if the origin does not answer.
    state: str
    waits_for: str = ""
    life: int = 0
    #: 0 if the origin does not answer and there is no network file.
    configured: int
    present: int
    is_below: bool
    confirm: int = 0
    confirmed: int
    newest: int
    copies: tuple[CopyView, ...]


def replicated_streams(
    statuses: Mapping[str, Status | None], configured: Mapping[str, int]
) -> list[StreamView]:
    """The replicated streams of these brokers; `configured`: their copies in the network file."""
    kept = _kept(statuses)
    found: dict[str, StreamView] = {}
    for name, status in statuses.items():
        own = None if status is None or status.replication is None else status.replication.own
        if own is not None and (own.configured > 1 or len(own.copies) > 1 or name in kept):
            found[name] = _told(name, own, statuses, kept.get(name, {}))
        elif status is None and (configured.get(name, 0) > 1 or name in kept):
            found[name] = _orphaned(name, configured.get(name, 0), kept.get(name, {}))
    for name in kept.keys() - statuses.keys():
        found[name] = _orphaned(name, configured.get(name, 0), kept[name])
    return [found[name] for name in sorted(found)]


def _kept(statuses: Mapping[str, Status | None]) -> dict[str, dict[str, KeptCopyReport]]:
    """Stream → broker → its copy of the stream."""
    found: dict[str, dict[str, KeptCopyReport]] = {}
    for name, status in statuses.items():
        if status is not None and status.replication is not None:
            for copy in status.replication.kept:
                found.setdefault(copy.stream, {})[name] = copy
    return found


def _told(
    stream: str,
    own: OwnCopiesReport,
    statuses: Mapping[str, Status | None],
    kept: Mapping[str, KeptCopyReport],
) -> StreamView:
    """A stream whose origin answers."""

    def view(copy: CopyReport) -> CopyView:
        is_down = copy.broker in statuses and statuses[copy.broker] is None
        return CopyView(
            broker=copy.broker,
            state="down" if is_down and copy.state != "lost" else copy.state,
            is_configured=copy.is_configured,
            since=copy.since,
            acked=copy.acked,
            lag=copy.lag,
            kept=kept.get(copy.broker),
        )

    known = {copy.broker for copy in own.copies}
    state: Literal["kept", "unneeded"] = "unneeded" if own.state == "leading" else "kept"
    copies = (
        *map(view, own.copies),
        *(
            CopyView(broker=name, state=state, is_configured=False, kept=kept[name])
            for name in sorted(kept.keys() - known)
        ),
    )
    present = sum(copy.state == "member" for copy in copies)
    return StreamView(
        stream=stream,
        state=own.state,
        waits_for=own.waits_for,
        life=own.life,
        configured=own.configured,
        present=present,
        is_below=present < own.configured,
        confirm=own.confirm,
        confirmed=own.confirmed,
        newest=own.newest,
        copies=copies,
    )


def _orphaned(stream: str, configured: int, kept: Mapping[str, KeptCopyReport]) -> StreamView:
    """A stream whose origin does not answer."""
    newest = max((copy.last for copy in kept.values()), default=0)
    copies = [CopyView(broker=stream, state="down", is_configured=True)]
    copies += [
        CopyView(
            broker=name,
            state="kept",
            is_configured=False,
            acked=copy.last,
            lag=newest - copy.last,
            kept=copy,
        )
        for name, copy in sorted(kept.items())
    ]
    return StreamView(
        stream=stream,
        state="down",
        configured=configured,
        present=len(kept),
        is_below=True,
        confirmed=max((copy.confirmed for copy in kept.values()), default=0),
        newest=newest,
        copies=tuple(copies),
    )


def why_below(stream: StreamView) -> str:
    """What is wrong with the copies of a stream that has too few."""
    absent = [copy for copy in stream.copies if copy.state in _WORDS]
    wrong = [f"{copy.broker} {_WORDS[copy.state]}" for copy in absent]
    return (
        f"stream {stream.stream} has {stream.present} of {stream.configured or '?'} copies"
        f"{': ' if wrong else ''}{', '.join(wrong)}"
    )


_WORDS = {
    "learner": "is being filled",
    "lost": "lost its copy",
    "silent": "has not answered",
    "down": "is down",
}


# -- tables ----------------------------------------------------------------------------------------


def streams_table(streams: Sequence[StreamView], width: int) -> Table:
    """One row per stream."""
    return fitted(_STREAMS, [_stream_row(stream) for stream in streams], width)


def _stream_row(stream: StreamView) -> list[str]:
    others = [copy for copy in stream.copies if copy.broker != stream.stream]
    keepers = [copy for copy in others if copy.state != "unneeded"]
    return [
        stream.stream,
        stream.state,
        f"{stream.present}/{stream.configured or '?'}",
        str(stream.confirm) if stream.confirm else "?",
        str(stream.confirmed),
        str(stream.newest),
        ", ".join(_lag(copy) for copy in keepers),
    ]


def _lag(copy: CopyView) -> str:
    is_fine = copy.state in {"member", "kept"}
    return f"{copy.broker} {_number(copy.lag)}{'' if is_fine else f' ({copy.state})'}"


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def copies_table(streams: Sequence[StreamView], width: int) -> Table:
    """One row per copy."""
    rows = [_copy_row(stream, copy) for stream in streams for copy in stream.copies]
    return fitted(_COPIES, rows, width)


def _copy_row(stream: StreamView, copy: CopyView) -> list[str]:
    kept = copy.kept
    return [
        stream.stream,
        copy.broker,
        copy.state,
        iso_time(copy.since, 0) if copy.since else "",
        _number(copy.acked),
        _number(copy.lag),
        f"{kept.first}–{kept.last}" if kept is not None else "",
        str(kept.confirmed) if kept is not None else "",
        ", ".join(_notes(stream, copy)),
    ]


def _notes(stream: StreamView, copy: CopyView) -> list[str]:
    found: list[str] = []
    if not copy.is_configured and stream.state == "leading":
        found.append("not in the network file")
    if copy.kept is not None and copy.kept.is_full:
        found.append("disk full")
    if copy.kept is not None and copy.kept.is_examining:
        found.append("reading its rows")
    return found
