"""What `anabranch status` shows of the brokers that were asked.

First a table of brokers. Then, as far as there is anything: the links of each broker, what it knows
of a mesh and did in it, the vector that the newest tick of each stream carries, what is staged and
which batches are under way, patterns and what came of them, the durable subscriptions that are
farthest behind, and at the end whatever is not as it should be. Nothing of it is wider than the
screen.

A vector says for every edge which version of its interest the stream's newest tick was routed with;
only the counters are shown, with a `*` if they are of an earlier life of the edge than others know.
This module keeps no state.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import RenderableType
from rich.text import Text

from anabranch.cli.output import Column, fitted, folded
from anabranch.core.report import CursorReport, DepartureReport
from anabranch.node.status import LinkStatus, Status

#: Lines of durable subscriptions.
CURSORS_MAX = 20
#: Edges of one vector.
EDGES_MAX = 24
#: A link that costs no more than this keeps up with what it is given, or is idle.
_COST_MIN = 1.125
#: Counters of a mesh router that are shown once they have counted anything, and what they are.
_MESH_COUNTERS = {
    "targets_moved": "moved",
    "targets_dropped": "dropped",
    "data_unfiltered": "unfiltered",
    "comparisons_put_off": "put-off",
    "advertisements_coarse": "coarse-advertisements",
    "bindings_coarse": "coarse-bindings",
    "wishes_coarse": "coarse-wishes",
}
_UNITS = ("B", "kB", "MB", "GB", "TB")
_BROKERS = (
    Column("broker"),
    Column("state"),
    Column("links", is_number=True),
    Column("clients", rank=2, is_number=True),
    Column("subs", rank=1, is_number=True),
    Column("log", rank=4, is_number=True),
    Column("unsynced", rank=6, is_number=True),
    Column("lag", is_number=True),
    Column("queued", rank=1, is_number=True),
    Column("memory", rank=3, is_number=True),
    Column("up", rank=5, is_number=True),
)
_CURSORS = (
    Column("durable subscription"),
    Column("client", rank=1),
    Column("at"),
    Column("client is", rank=2),
    Column("lag", is_number=True),
    Column("unacked", rank=3, is_number=True),
)


class Asked(msgspec.Struct, frozen=True):
    """A broker that was asked, and what it said; None if it did not answer."""

    name: str
    host: str
    port: int
    status: Status | None = None
    #: Somebody is there, and it is no observe port.
    is_other_port: bool = False
    #: The file with the token to be shown.
    token_file: Path | None = None
    #: What it says instead of a status.
    refusal: str = ""

    @property
    def silence(self) -> str:
        """Why there is no status."""
        where = f"{self.host}:{self.port}"
        if self.refusal:
            return f"{where} does not tell its status: {self.refusal}"
        if self.is_other_port:
            return (
                f"{where} is there and speaks no HTTP: it may be a port for clients; give the"
                " observe port, which a broker prints when it starts, or --network FILE"
            )
        return f"does not answer at {where}"


def picture(asked: Sequence[Asked], width: int) -> list[RenderableType]:
    """All there is to show, in order."""
    told = [each.status for each in asked if each.status is not None]
    indent = 2 + max(len(name) + 2 for name in ["all", *(status.broker for status in told)])
    rows = [[each.name, *_cells(each.status)] for each in asked]
    parts: list[RenderableType] = [fitted(_BROKERS, rows, width)]
    links = [line for each in told for line in _links(each, width, indent)]
    parts += _section("links", links)
    mesh = [line for each in told for line in _mesh(each, width, indent)]
    parts += _section("mesh", mesh)
    parts += _section("vectors", list(_vectors(told, width, indent)))
    batches = [line for each in told for line in _batches(each, width, indent)]
    parts += _section("batches", batches)
    patterns = [line for each in told for line in _patterns(each, width, indent)]
    parts += _section("patterns", patterns)
    parts += _durable(told, width)
    troubles = [line for each in asked for line in _troubles(each)]
    return parts + _section("to be looked at", [f"  {line}" for line in troubles])


def _section(title: str, lines: list[str]) -> list[RenderableType]:
    return [Text(), Text(title), *map(Text, lines)] if lines else []


# -- brokers ---------------------------------------------------------------------------------------


def _cells(status: Status | None) -> list[str]:
    if status is None:
        return ["down"]
    log = status.log
    return [
        status.state,
        links_up(status),
        str(status.sessions) if status.is_edge else "",
        str(status.subscriptions) if status.is_edge else "",
        f"{log.oldest}–{log.head}" if log else "",
        str(log.unsynced) if log else "",
        str(lag(status)) if status.is_edge else "",
        size(queued_bytes(status)),
        size(status.resident_bytes),
        duration(status.uptime_s),
    ]


def links_up(status: Status) -> str:
    """How many links are up, of how many."""
    return f"{sum(link.is_up for link in status.links)}/{len(status.links)}"


def lag(status: Status) -> int:
    """Ticks that somebody at this broker still needs, over all streams."""
    return sum(stream.lag for stream in status.streams)


def queued_bytes(status: Status) -> int:
    """What waits in memory to be sent, to clients and neighbours."""
    return status.client_waiting_bytes + sum(link.waiting_bytes for link in status.links)


def _links(status: Status, width: int, indent: int) -> list[str]:
    if not status.links:
        return []
    costs = {} if status.mesh is None else status.mesh.costs
    up = [_link(link, costs.get(link.peer, 0.0)) for link in status.links if link.is_up]
    down = [f"{link.peer} (down)" for link in status.links if not link.is_up]
    return folded(f"  {status.broker}", up + down, width, indent)


def _link(link: LinkStatus, cost: float) -> str:
    notes = ["full"] if link.is_full else []
    if cost > _COST_MIN:
        notes.append(f"cost {cost:,.1f}")
    if link.waiting_bytes or link.is_full:
        notes.append(f"{size(link.waiting_bytes)} queued")
    return f"{link.peer} ({', '.join(notes)})" if notes else link.peer


def _mesh(status: Status, width: int, indent: int) -> list[str]:
    mesh = status.mesh
    if mesh is None:
        return []
    lost = f" ({mesh.trees_lost} lost)" if mesh.trees_lost else ""
    words = [
        f"trees={mesh.trees}{lost}",
        f"branches={mesh.branches}",
        f"advertisements={mesh.advertisements} (of {mesh.origins})",
    ]
    counters = status.routing_counters
    words += [
        f"{word}={counters[name]:,}" for name, word in _MESH_COUNTERS.items() if counters.get(name)
    ]
    return folded(f"  {status.broker}", words, width, indent)


def _batches(status: Status, width: int, indent: int) -> list[str]:
    staging = status.staging
    if staging is None or not (staging.sinks or staging.tokens):
        return []
    words = [f"sinks={staging.sinks}", f"staged={staging.tokens} ({size(staging.size_bytes)})"]
    words += [f"{each.sink}:{each.batch} {each.written}/{each.events}" for each in staging.batches]
    left_out = staging.under_way - len(staging.batches)
    more = [f"and {left_out} more"] if left_out else []
    return folded(f"  {status.broker}", words + more, width, indent)


def _patterns(status: Status, width: int, indent: int) -> list[str]:
    patterns = status.patterns
    if patterns is None or not (patterns.patterns or patterns.events):
        return []
    words = [
        f"detected={patterns.active}/{patterns.patterns}",
        f"events={patterns.events:,}",
        f"matches={patterns.reported:,}",
        f"kept={patterns.kept:,}",
    ]
    words += [
        f"{word}={count:,}"
        for word, count in (
            ("late", patterns.late),
            ("left-out", patterns.left_out),
            ("overflows", patterns.overflows),
            ("withheld", patterns.withheld),
        )
        if count
    ]
    return folded(f"  {status.broker}", words, width, indent)


# -- vectors and subscriptions ---------------------------------------------------------------------


def _vectors(told: Sequence[Status], width: int, indent: int) -> Iterator[str]:
    found = {each.broker: each.log.vector for each in told if each.log is not None}
    newest: dict[str, int] = {}
    for vector in found.values():
        for edge, version in vector.items():
            newest[edge] = max(newest.get(edge, 0), _life(version))
    if len(found) > 1 and len({tuple(sorted(vector.items())) for vector in found.values()}) == 1:
        found = {"all": next(iter(found.values()))}
    for stream, vector in found.items():
        words = [
            f"{edge}={version.rpartition('.')[2]}{'*' if _life(version) < newest[edge] else ''}"
            for edge, version in sorted(vector.items())
        ]
        more = [f"and {len(words) - EDGES_MAX} more"] if len(words) > EDGES_MAX else []
        yield from folded(f"  {stream}", words[:EDGES_MAX] + more or ["–"], width, indent)


def _life(version: str) -> int:
    life = version.partition(".")[0]
    return int(life) if life.isdecimal() else 0


def _durable(told: Sequence[Status], width: int) -> list[RenderableType]:
    every = [(cursor, each.broker) for each in told for cursor in each.cursors]
    every.sort(key=lambda found: -found[0].lag)
    if not every:
        return []
    table = fitted(_CURSORS, [_cursor(*each) for each in every[:CURSORS_MAX]], width)
    left_out = len(every) - CURSORS_MAX
    more = [Text(f"and {left_out} more; --json tells them")] if left_out > 0 else []
    return [Text(), table, *more]


def _cursor(cursor: CursorReport, broker: str) -> list[str]:
    there = "connected" if cursor.is_connected else "away"
    return [cursor.subscription, cursor.client, broker, there, str(cursor.lag), str(cursor.unacked)]


# -- what is wrong ---------------------------------------------------------------------------------


def _troubles(asked: Asked) -> list[str]:
    status = asked.status
    if status is None:
        return [f"{asked.name}: {asked.silence}"]
    name = status.broker
    lines = [
        f"{name}: no link to {link.peer}: {link.reason}" for link in status.links if not link.is_up
    ]
    lines += [f"{name}: the link to {link.peer} is full" for link in status.links if link.is_full]
    if status.log is not None and status.log.hindrance:
        lines.append(f"{name}: {status.log.hindrance}")
    if status.departure is not None:
        lines.append(f"{name}: {_departing(status.departure)}")
    if status.mesh is not None and status.mesh.lost:
        lines.append(f"{name}: no way is known to {', '.join(status.mesh.lost)}; one is sought")
    circles = status.routing_counters.get("hop_bound_fired", 0)
    if circles:
        lines.append(
            f"{name}: {circles} copies of events went in circles, which is a mistake of ours"
        )
    patterns = status.patterns
    if patterns is not None and patterns.left_out:
        lines.append(
            f"{name}: more matches of its patterns end with one event than are reported, for"
            f" {patterns.left_out:,} events; the log says which"
        )
    if patterns is not None and (patterns.overflows or patterns.withheld):
        lines.append(f"{name}: some of its patterns may have missed matches; the log says which")
    for stream in status.streams:
        if stream.behind or stream.waiting:
            lines.append(
                f"{name}: on stream {stream.stream} {stream.behind} subscriptions catch up and"
                f" {stream.waiting} have not started"
            )
    return lines


def _departing(departure: DepartureReport) -> str:
    if departure.is_drained:
        return "departs, and may leave: it is drained"
    needed, kept = ", ".join(departure.needed_by), ", ".join(departure.kept)
    return f"departs; its events are needed by: {needed or 'nobody'}; it keeps: {kept or 'nothing'}"


# -- for people ------------------------------------------------------------------------------------


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in _UNITS:
        if count < 1_000 or unit == _UNITS[-1]:
            break
        count /= 1_000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"


def duration(seconds: float) -> str:
    """A time for people."""
    whole = int(seconds)
    days, hours, minutes = whole // 86_400, whole // 3_600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
