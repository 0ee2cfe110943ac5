"""`anabranch status`: query the observe ports of brokers and print their state.

The brokers are those of a network file, or those at the given addresses. A broker that does not
answer is reported as down, and the exit code is then 1.

The output starts with a table of brokers, and one of the streams with copies. Sections follow if
they are not empty: links, mesh state
and counters, the version vector of the newest tick of each stream, staged events and open batches,
patterns, the durable subscriptions with the greatest lag, and problems. No line is wider than the
screen.

A version vector holds, for every edge, the interest version with which the newest tick of a stream
was routed. Only the counter of a version is shown, with a `*` if it belongs to an earlier
incarnation of the edge than the newest one seen.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType
from rich.text import Text

from anabranch.cli.errors import CommandError
from anabranch.cli.output import print_json
from anabranch.cli.replication_view import StreamView, replicated_streams, streams_table, why_below
from anabranch.cli.screen import Column, console, fitted, folded, room, show
from anabranch.config.network_location import NETWORK_VARIABLE, running_file
from anabranch.core.report import CursorReport, DepartureReport
from anabranch.devnet.observe import NO_HTTP, ask
from anabranch.node.status import LinkStatus, Status

#: Durable subscriptions shown.
CURSORS_MAX = 20
#: Edges shown of one vector.
EDGES_MAX = 24
#: A link with at most this cost is idle or keeps up with its traffic; its cost is not shown.
_COST_MIN = 1.125
#: Counters of a mesh router → their labels. Counters of zero are not shown.
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
    """A broker to query, and its status; None if it did not answer."""

    name: str
    host: str
    port: int
    status: Status | None = None
    #: The port accepts connections but is not an observe port.
    is_other_port: bool = False
    #: The file with the token for the observe port.
    token_file: Path | None = None
    #: The broker's reason for refusing the query.
    refusal: str = ""
    #: Copies of its stream in the network file; 0 if unknown.
    copies: int = 0

    @property
    def silence(self) -> str:
        """Why the broker has no status."""
        where = f"{self.host}:{self.port}"
        if self.refusal:
            return f"{where} refuses to report its status: {self.refusal}"
        if self.is_other_port:
            return (
                f"{where} does not speak HTTP: it may be a client port; give the observe port,"
                " which a broker prints when it starts, or --network FILE"
            )
        return f"does not answer at {where}"


def picture(asked: Sequence[Asked], width: int) -> list[RenderableType]:
    statuses = [each.status for each in asked if each.status is not None]
    indent = 2 + max(len(name) + 2 for name in ["all", *(status.broker for status in statuses)])
    rows = [[each.name, *_cells(each.status)] for each in asked]
    parts: list[RenderableType] = [fitted(_BROKERS, rows, width)]
    parts += _replicated(asked, width)
    links = [line for each in statuses for line in _links(each, width, indent)]
    parts += _section("links", links)
    mesh = [line for each in statuses for line in _mesh(each, width, indent)]
    parts += _section("mesh", mesh)
    parts += _section("vectors", list(_vectors(statuses, width, indent)))
    batches = [line for each in statuses for line in _batches(each, width, indent)]
    parts += _section("batches", batches)
    patterns = [line for each in statuses for line in _patterns(each, width, indent)]
    parts += _section("patterns", patterns)
    parts += _durable(statuses, width)
    problems = [line for each in asked for line in _problems(each)]
    problems += [why_below(stream) for stream in streams_of(asked) if stream.is_below]
    return parts + _section("problems", [f"  {line}" for line in problems])


def streams_of(asked: Sequence[Asked]) -> list[StreamView]:
    """The replicated streams of these brokers."""
    configured = {each.name: each.copies for each in asked}
    return replicated_streams({each.name: each.status for each in asked}, configured)


def _replicated(asked: Sequence[Asked], width: int) -> list[RenderableType]:
    """The copies of the streams of these brokers."""
    found = streams_of(asked)
    return [Text(), streams_table(found, width)] if found else []


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
    return f"{sum(link.is_up for link in status.links)}/{len(status.links)}"


def lag(status: Status) -> int:
    """Ticks that clients of this broker still need, over all streams."""
    return sum(stream.lag for stream in status.streams)


def queued_bytes(status: Status) -> int:
    """Bytes queued in memory for clients and neighbours."""
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


def _vectors(statuses: Sequence[Status], width: int, indent: int) -> Iterator[str]:
    found = {each.broker: each.log.vector for each in statuses if each.log is not None}
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


def _durable(statuses: Sequence[Status], width: int) -> list[RenderableType]:
    cursors = [(cursor, each.broker) for each in statuses for cursor in each.cursors]
    cursors.sort(key=lambda found: -found[0].lag)
    if not cursors:
        return []
    table = fitted(_CURSORS, [_cursor(*each) for each in cursors[:CURSORS_MAX]], width)
    left_out = len(cursors) - CURSORS_MAX
    more = [Text(f"and {left_out} more; --json lists all")] if left_out > 0 else []
    return [Text(), table, *more]


def _cursor(cursor: CursorReport, broker: str) -> list[str]:
    state = "connected" if cursor.is_connected else "away"
    return [cursor.subscription, cursor.client, broker, state, str(cursor.lag), str(cursor.unacked)]


# -- problems --------------------------------------------------------------------------------------


def _problems(asked: Asked) -> list[str]:
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
    lines += [f"{name}: {line}" for line in _copy_problems(status)]
    if status.departure is not None:
        lines.append(f"{name}: {_departure(status.departure)}")
    if status.mesh is not None and status.mesh.lost:
        lines.append(f"{name}: no route to {', '.join(status.mesh.lost)}; searching")
    loops = status.routing_counters.get("hop_bound_fired", 0)
    if loops:
        lines.append(f"{name}: {loops} copies of events looped (hop limit); please report this bug")
    patterns = status.patterns
    if patterns is not None and patterns.left_out:
        lines.append(
            f"{name}: {patterns.left_out:,} events completed more pattern matches than the limit;"
            " the excess was not reported; see the log"
        )
    if patterns is not None and (patterns.overflows or patterns.withheld):
        lines.append(f"{name}: some patterns may have missed matches; see the log")
    for stream in status.streams:
        if stream.behind or stream.waiting:
            lines.append(
                f"{name}: stream {stream.stream}: {stream.behind} subscriptions catching up,"
                f" {stream.waiting} not started"
            )
    return lines


def _copy_problems(status: Status) -> Iterator[str]:
    replication = status.replication
    if replication is None:
        return
    if replication.own is not None and replication.own.waits_for:
        yield f"refuses clients: {replication.own.waits_for}"
    full = [copy.stream for copy in replication.kept if copy.is_full]
    if full:
        yield f"the disk has no space for the copies of {', '.join(full)}"


def _departure(departure: DepartureReport) -> str:
    if departure.is_drained:
        return "departing; drained, can be removed"
    needed, kept = ", ".join(departure.needed_by), ", ".join(departure.kept)
    return f"departing; events needed by: {needed or 'none'}; still holds: {kept or 'nothing'}"


# -- units -----------------------------------------------------------------------------------------


def size(count: float) -> str:
    for unit in _UNITS:
        if count < 1_000 or unit == _UNITS[-1]:
            break
        count /= 1_000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"


def duration(seconds: float) -> str:
    whole = int(seconds)
    days, hours, minutes = whole // 86_400, whole // 3_600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


_decoder = msgspec.json.Decoder(Status)
_REFUSAL_MAX = 500


#: The token option of commands that query observe ports.
ObservePorts = Annotated[
    list[str] | None, typer.Argument(help="Observe ports, HOST:PORT.", show_default=False)
]
ObservedNetwork = Annotated[
    Path | None,
    typer.Option(
        "--network",
        "-n",
        help="Query all brokers of this network file. Default, without addresses:"
        " $ANABRANCH_NETWORK.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File with the token for observe ports. Default: the one in the network file.",
        show_default=False,
    ),
]


def brokers_of(
    network: Path | None, addresses: list[str], token_file: Path | None = None
) -> list[Asked]:
    """The brokers to query, with their tokens."""
    if network is None and not addresses and os.environ.get(NETWORK_VARIABLE):
        network = Path(os.environ[NETWORK_VARIABLE])
    if network is None and not addresses:
        raise CommandError(
            "give --network FILE or the addresses of observe ports, such as 127.0.0.1:4102, or set"
            f" {NETWORK_VARIABLE} to the path of a network file"
        )
    if network is not None and addresses:
        raise CommandError("give either --network FILE or the addresses of observe ports, not both")
    if network is None:
        return [_at(address, token_file) for address in addresses]
    file = running_file(network, "observe")
    found = [
        Asked(
            each.name,
            each.observe_host,
            each.observe_port,
            token_file=token_file or each.observe_token_file,
            copies=file.stream(each.name).copies if each.name in file.network.edges else 0,
        )
        for each in file.brokers.values()
    ]
    for each in found:
        if not each.port:
            raise CommandError(
                f"broker {each.name!r} has no observe port in {file.path}; add one to the file, or"
                " give addresses, which brokers print when they start"
            )
    return found


def _at(address: str, token_file: Path | None) -> Asked:
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise CommandError(f"invalid address {address!r}; write HOST:PORT, as in 127.0.0.1:4102")
    return Asked(address, host.strip("[]") or "127.0.0.1", int(port), token_file=token_file)


async def ask_all(brokers: list[Asked]) -> list[Asked]:
    """Query all brokers at once and return them with their answers."""
    return list(await asyncio.gather(*map(_ask, brokers)))


async def _ask(asked: Asked) -> Asked:
    answer = await ask(asked.host, asked.port, "/status", asked.token_file)
    if answer is None or answer[0] != 200:
        code, body = (0, b"") if answer is None else answer
        is_other = answer is not None and code == NO_HTTP
        refusal = _refusal(code, body, asked.token_file)
        return msgspec.structs.replace(asked, status=None, is_other_port=is_other, refusal=refusal)
    try:
        status = _decoder.decode(answer[1])
    except msgspec.DecodeError as error:
        raise CommandError(f"{asked.host}:{asked.port} is not a broker: {error}") from error
    return Asked(status.broker, asked.host, asked.port, status, token_file=asked.token_file)


def _refusal(code: int, body: bytes, token_file: Path | None) -> str:
    """Why a broker refused to report its status; "" if it did not refuse."""
    if code == HTTPStatus.UNAUTHORIZED:
        wrong = f"it rejects the token in {token_file}"
        return wrong if token_file else "it requires a token; give --token-file"
    if code == HTTPStatus.MISDIRECTED_REQUEST:
        return body[:_REFUSAL_MAX].decode(errors="replace").strip()
    return ""


def status(
    addresses: ObservePorts = None,
    network: ObservedNetwork = None,
    token_file: TokenFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per broker.")
    ] = False,
) -> None:
    """Show the state of brokers: links, queues, log, lag."""
    asked = asyncio.run(ask_all(brokers_of(network, addresses or [], token_file)))
    if as_json:
        for each in asked:
            print_json(each.status or {"broker": each.name, "state": "down"})
    else:
        screen = console()
        show(screen, *picture(asked, room(screen)))
    if any(each.status is None for each in asked):
        raise typer.Exit(1)
