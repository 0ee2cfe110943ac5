"""What was promised to each episode of a subscription, from what its trace says about it.

An episode (`check.history`) becomes rows of the table `subscriptions`, one for each stream on which
its start was told. Rules, as in `check.checker`:

1. It begins with the tick that was told first, or with the one it asked for, if that is later.
2. One that was ended is due up to the tick it was told; one that was cut, up to the last tick that
   came. One that lives on is due up to that, too, or with `complete` to the end of the stream.
3. What comes before a start was told, or after an end or a cut, is out of bounds.

This module keeps no state.
"""

from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa

from anabranch.check import history as saw
from anabranch.sim import workload

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
    """What is known of one."""

    asked: saw.Subscribed
    #: Stream → tick, and when it was told.
    starts: dict[str, tuple[int, int]]
    ends: dict[str, int]
    over: int | None = None


class Episodes(msgspec.Struct, frozen=True):
    """All episodes of some traces, and what was withheld from them."""

    every: dict[str, _Episode]
    withheld: list[saw.WithheldTold]

    def subscriptions(self, latest: Mapping[Place, int], *, complete: bool) -> pa.Table:
        """The table; `latest`: the last tick that came to an episode on a stream."""
        rows = [
            row
            for name, episode in self.every.items()
            for row in _rows(name, episode, latest, complete)
        ]
        return pa.Table.from_pylist(rows, schema=_SUBSCRIPTIONS)

    def holes(self) -> pa.Table:
        """The table of what was withheld."""
        rows = [
            {"subscription": told.subscription, "stream": told.stream, "first": told.first}
            | {"last": told.last}
            for told in self.withheld
        ]
        return pa.Table.from_pylist(rows, schema=_WITHHELD)


def read_episodes(told: Sequence[tuple[int, saw.Record]]) -> Episodes:
    """The episodes that records tell of, which have an order."""
    found = Episodes({}, [])
    for order, record in told:
        match record:
            case saw.Subscribed():
                found.every.setdefault(record.subscription, _Episode(record, {}, {}))
            case saw.WithheldTold():
                found.withheld.append(record)
            case saw.Started() | saw.Ended() | saw.Cut():
                episode = found.every.get(record.subscription)
                if episode is not None:
                    _tell(episode, order, record)
    return found


def _tell(episode: _Episode, order: int, record: saw.Started | saw.Ended | saw.Cut) -> None:
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
    goes_on = episode.over is None and complete
    return [
        common
        | {
            "stream": stream,
            "start": max(tick, _asked_start(asked, stream)),
            "end": episode.ends.get(stream),
            "due": None if goes_on else episode.ends.get(stream, latest.get((name, stream), 0)),
            "startOrder": order,
        }
        for stream, (tick, order) in episode.starts.items()
    ]


def _asked_start(asked: saw.Subscribed, stream: str) -> int:
    return asked.latest_start.get(stream, 0) if asked.start == "tick" else 0


def filter_text(wanted: saw.AnyFilter) -> str:
    """A filter as the language has it; traces of simulations have conjunctions instead."""
    if isinstance(wanted, str):
        return wanted
    # A conjunction of nothing always holds.
    return workload.filter_text(wanted) if all(wanted) else "TRUE"
