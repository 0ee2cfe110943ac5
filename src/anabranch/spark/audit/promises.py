"""Delivery promises in the form that audit tasks need: filters, bounds, and withheld ranges.

The driver collects and validates the table of subscriptions and sends it to tasks as arrays.
Subscriptions and filters are numbered; subscriptions with the same filter share its number, so each
event is matched once per distinct filter. Rules:

1. A subscription has one filter and one quality, and at most one row per stream.
2. An invalid filter is an error that names the subscription.
3. A subscription without a row for a stream has not started there: nothing is expected, and
   deliveries are out of bounds.

From traces, each episode of a subscription (`check.history`) becomes rows of the table, one per
stream on which its start was reported. Rules, as in `check.checker`:

4. An episode starts at the tick that was reported first, or at the requested one if that is later.
5. An episode that ended is due up to the reported end; one that was cut, up to the last delivered
   tick. An active one is due up to that as well or, with `complete`, to the end of the stream.
6. Deliveries before the start was reported, or after an end or a cut, are out of bounds.

State: immutable. A million subscriptions on ten streams take about half a gigabyte.
"""

from collections.abc import Mapping, Sequence
from typing import get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.check import history as saw
from anabranch.check.history import Quality
from anabranch.model.errors import FilterError, LocalError
from anabranch.model.filter import Filter
from anabranch.spark.kernels import block_verdicts as at

Integers = NDArray[np.int64]
_NEVER = int(at.NEVER)
#: Column of the table → index in the bounds, and default.
_BOUNDS = {
    "start": (at.START, _NEVER),
    "due": (at.DUE, _NEVER),
    "end": (at.END, _NEVER),
    "startOrder": (at.START_ORDER, -_NEVER),
    "endOrder": (at.END_ORDER, _NEVER),
}


class Rows(msgspec.Struct, frozen=True):
    """The rows of one stream: subscription numbers, and their bounds in parallel."""

    numbers: Integers
    bounds: Integers


class Holes(msgspec.Struct, frozen=True):
    """Withheld ranges of one stream, ordered by subscription and first tick."""

    numbers: Integers
    firsts: Integers
    lasts: Integers


class Promises(msgspec.Struct, frozen=True, kw_only=True):
    """All delivery promises. See the rules at the top of this module."""

    #: Subscriptions by number.
    names: tuple[str, ...]
    #: Texts of distinct filters, by number.
    filters: tuple[str, ...]
    #: Subscriptions of each filter: slices of `members`, bounded by `members_first`.
    members_first: Integers
    members: NDArray[np.int32]
    is_best_effort: NDArray[np.bool_]
    rows: Mapping[str, Rows]
    holes: Mapping[str, Holes]
    #: Stream → first checked tick, if it is not the first tick.
    beginnings: Mapping[str, int]

    def bounds_on(self, stream: str) -> Integers:
        """The bounds of all subscriptions on a stream, in the kernel's layout."""
        bounds = np.empty((len(self.names), at.BOUNDS), np.int64)
        for place, default in _BOUNDS.values():
            bounds[:, place] = default
        bounds[:, at.BEST_EFFORT] = self.is_best_effort
        rows = self.rows.get(stream)
        if rows is not None:
            bounds[rows.numbers, : rows.bounds.shape[1]] = rows.bounds
        return bounds

    def is_withheld(self, stream: str, numbers: Integers, ticks: Integers) -> NDArray[np.bool_]:
        """For each match, whether it was reported to its subscriber as withheld."""
        found = np.zeros(len(ticks), np.bool_)
        holes = self.holes.get(stream)
        if holes is None or not len(ticks):
            return found
        overlapping = np.flatnonzero((holes.lasts >= ticks.min()) & (holes.firsts <= ticks.max()))
        for hole in overlapping:
            is_inside = (ticks >= holes.firsts[hole]) & (ticks <= holes.lasts[hole])
            found |= is_inside & (numbers == holes.numbers[hole])
        return found


def read_promises(
    subscriptions: pa.Table, withheld: pa.Table | None, beginnings: Mapping[str, int]
) -> Promises:
    """Read the promises from the tables (`inputs.subscriptions_of`, `withheld_of`)."""
    names, filters, qualities = _read_subscriptions(subscriptions)
    numbers = {name: number for number, name in enumerate(names)}
    distinct = {text: number for number, text in enumerate(dict.fromkeys(filters))}
    _check_filters(names, filters)
    of_filter = np.array([distinct[text] for text in filters], np.int64)
    order = np.argsort(of_filter, kind="stable").astype(np.int32)
    counts = np.bincount(of_filter, minlength=len(distinct))
    return Promises(
        names=names,
        filters=tuple(distinct),
        members_first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        members=order,
        is_best_effort=np.array([quality == "best-effort" for quality in qualities], np.bool_),
        rows=_read_rows(subscriptions, numbers),
        holes={} if withheld is None else _read_holes(withheld, numbers),
        beginnings=dict(beginnings),
    )


def _read_subscriptions(
    table: pa.Table,
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    found: dict[str, tuple[str, str]] = {}
    columns = [table[name].to_pylist() for name in ("subscription", "filter", "quality")]
    for name, text, quality in zip(*columns, strict=True):
        if name is None or text is None:
            raise LocalError("a row of the table 'subscriptions' lacks a subscription or a filter")
        if quality not in get_args(Quality):
            raise LocalError(
                f"subscription {name!r} has the unknown quality {quality!r}; allowed:"
                f" {', '.join(get_args(Quality))}"
            )
        if found.setdefault(name, (text, quality)) != (text, quality):
            raise LocalError(
                f"subscription {name!r} has two filters or qualities; a changed subscription needs"
                " another name"
            )
    texts = tuple(text for text, _ in found.values())
    return tuple(found), texts, tuple(quality for _, quality in found.values())


def _check_filters(names: Sequence[str], filters: Sequence[str]) -> None:
    seen: set[str] = set()
    for name, text in zip(names, filters, strict=True):
        if text not in seen:
            seen.add(text)
            try:
                Filter.parse(text)
            except FilterError as error:
                raise LocalError(f"the filter of subscription {name!r}: {error}") from error


def _read_rows(table: pa.Table, numbers: Mapping[str, int]) -> dict[str, Rows]:
    table = table.filter(pc.is_valid(table["stream"]))
    _check_once(table)
    found: dict[str, Rows] = {}
    for stream, part in _by_stream(table):
        bounds = np.empty((len(part), len(_BOUNDS)), np.int64)
        for name, (place, default) in _BOUNDS.items():
            bounds[:, place] = pc.fill_null(part[name], default).to_numpy()
        is_due_to_end = pc.is_null(part["due"]).to_numpy(zero_copy_only=False)
        bounds[is_due_to_end, at.DUE] = bounds[is_due_to_end, at.END]
        found[stream] = Rows(_numbers(part, numbers), bounds)
    return found


def _check_once(table: pa.Table) -> None:
    if pc.any(pc.is_null(table["start"])).as_py():
        raise LocalError("a row of the table 'subscriptions' names a stream but has no start")
    keys = ["subscription", "stream"]
    counted = table.group_by(keys).aggregate([("start", "count")])
    twice = counted.filter(pc.greater(counted["start_count"], 1)).slice(0, 1).to_pylist()
    if twice:
        name, stream = (twice[0][key] for key in keys)
        raise LocalError(f"subscription {name!r} has two rows for stream {stream!r}")


def _read_holes(table: pa.Table, numbers: Mapping[str, int]) -> dict[str, Holes]:
    known = pc.is_in(table["subscription"], pa.array(list(numbers), pa.string()))
    table = table.filter(known)
    return {
        stream: Holes(_numbers(part, numbers), part["first"].to_numpy(), part["last"].to_numpy())
        for stream, part in _by_stream(table)
    }


def _by_stream(table: pa.Table) -> list[tuple[str, pa.Table]]:
    streams: list[str] = pc.unique(table["stream"]).to_pylist()
    return [(stream, table.filter(pc.equal(table["stream"], stream))) for stream in streams]


def _numbers(table: pa.Table, numbers: Mapping[str, int]) -> Integers:
    names = table["subscription"].to_pylist()
    return np.fromiter((numbers[name] for name in names), np.int64, len(names))


# -- episodes in traces ----------------------------------------------------------------------------
Place = tuple[str, str]

_SUBSCRIPTIONS = pa.schema(
    [
        ("subscription", pa.string()),
        ("filter", pa.string()),
        ("quality", pa.string()),
        ("stream", pa.string()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("due", pa.int64()),
        ("startOrder", pa.int64()),
        ("endOrder", pa.int64()),
    ]
)
_WITHHELD = pa.schema(
    [
        ("subscription", pa.string()),
        ("stream", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
    ]
)


class _Episode(msgspec.Struct):
    """An episode, as recorded in a trace."""

    asked: saw.Subscribed
    #: Stream → start tick, and the order in which it was reported.
    starts: dict[str, tuple[int, int]]
    ends: dict[str, int]
    over: int | None = None


class Episodes(msgspec.Struct, frozen=True):
    """All episodes of some traces, and the ranges withheld from them."""

    every: dict[str, _Episode]
    withheld: list[saw.WithheldTold]

    def subscriptions(self, latest: Mapping[Place, int], *, complete: bool) -> pa.Table:
        """The table of subscriptions; `latest`: last delivered tick by episode and stream."""
        rows = [
            row
            for name, episode in self.every.items()
            for row in _rows(name, episode, latest, complete)
        ]
        return pa.Table.from_pylist(rows, schema=_SUBSCRIPTIONS)

    def holes(self) -> pa.Table:
        """The table of withheld ranges."""
        rows = [
            {"subscription": record.subscription, "stream": record.stream, "first": record.first}
            | {"last": record.last}
            for record in self.withheld
        ]
        return pa.Table.from_pylist(rows, schema=_WITHHELD)


def read_episodes(records: Sequence[tuple[int, saw.Record]]) -> Episodes:
    """Read episodes from ordered trace records."""
    found = Episodes({}, [])
    for order, record in records:
        match record:
            case saw.Subscribed():
                found.every.setdefault(record.subscription, _Episode(record, {}, {}))
            case saw.WithheldTold():
                found.withheld.append(record)
            case saw.Started() | saw.Ended() | saw.Cut():
                episode = found.every.get(record.subscription)
                if episode is not None:
                    _record(episode, order, record)
    return found


def _record(episode: _Episode, order: int, record: saw.Started | saw.Ended | saw.Cut) -> None:
    if isinstance(record, saw.Started):
        episode.starts.setdefault(record.stream, (record.tick, order))
        return
    if isinstance(record, saw.Ended):
        episode.ends[record.stream] = record.tick
    if episode.over is None:
        episode.over = order


def _rows(
    name: str, episode: _Episode, latest: Mapping[Place, int], complete: bool
) -> list[dict[str, object]]:
    asked = episode.asked
    common: dict[str, object] = {
        "subscription": name,
        "filter": filter_text(asked.filter),
        "quality": asked.quality,
        "endOrder": episode.over,
    }
    if not episode.starts:
        return [common]
    is_active = episode.over is None and complete
    return [
        common
        | {
            "stream": stream,
            "start": max(tick, _asked_start(asked, stream)),
            "end": episode.ends.get(stream),
            "due": None if is_active else episode.ends.get(stream, latest.get((name, stream), 0)),
            "startOrder": order,
        }
        for stream, (tick, order) in episode.starts.items()
    ]


def _asked_start(asked: saw.Subscribed, stream: str) -> int:
    return asked.latest_start.get(stream, 0) if asked.start == "tick" else 0


def filter_text(wanted: saw.AnyFilter) -> str:
    """A filter in the filter language; traces of simulations hold conjunctions instead."""
    if isinstance(wanted, str):
        return wanted
    # An empty conjunction is always true.
    return saw.filter_text(wanted) if all(wanted) else "TRUE"
