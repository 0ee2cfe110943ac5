"""`[replication]`: the number of copies of every stream, and how many of them confirm an event.

    [replication]
    copies = 3             # of every stream: at its origin, and at two keepers
    confirm = 2            # copies that have synced an event when it is confirmed
    prefer = "near"        # edges ask keepers first where one is nearer than the origin

    [brokers.a]            # these three differ for the stream of `a`
    copies = 3
    confirm = 3
    keepers = ["b", "c"]

Rules

1. `confirm` is at most `copies`. By default it is a majority of the `copies` in the same table.
2. A broker without `copies` has those of `[replication]`, and without either key its `confirm` too.
3. Only edges have streams, so only edges have these keys.
4. `keepers` names `copies - 1` other brokers of the network. Without it, the shape of the network
   chooses them (`core.replication.placement`).
5. A network has at least as many brokers as a stream has copies.
"""

from collections.abc import Mapping
from typing import cast, get_args

import msgspec

from anabranch.config.toml_reader import Table, nearest
from anabranch.core.options import COPIES_MAX, Options, Prefer
from anabranch.core.replication.placement import (
    copies_problem,
    keeper_problem,
    keepers_of,
    keepers_problem,
)
from anabranch.model.network import Network

#: The keys of a broker's table; the fields of `Options` with the same names.
REPLICATION_KEYS = ("copies", "confirm", "keepers")
#: All fields of `Options` that are not options in the file.
REPLICATION_FIELDS = (*REPLICATION_KEYS, "prefer")


class Replication(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of one broker's table, as they are written. None: absent."""

    copies: int | None = None
    confirm: int | None = None
    keepers: tuple[str, ...] = ()

    def applied_to(self, options: Options) -> Options:
        """The options of the broker, from those of the network (rules 1 and 2)."""
        copies, confirm = options.copies, options.confirm
        if self.copies is not None:
            copies, confirm = self.copies, _majority(self.copies)
        if self.confirm is not None:
            confirm = self.confirm
        return msgspec.structs.replace(
            options, copies=copies, confirm=confirm, keepers=self.keepers
        )


class Stream(msgspec.Struct, frozen=True):
    """The replication of one stream, complete."""

    copies: int
    confirm: int
    #: Nearest first.
    keepers: tuple[str, ...]


def stream_of(network: Network, broker: str, options: Options) -> Stream:
    """The replication of an edge's stream, from the options of the edge."""
    keepers = keepers_of(network, broker, options.copies, options.keepers)
    return Stream(options.copies, options.confirm, keepers)


def streams_kept(streams: Mapping[str, Stream]) -> dict[str, list[str]]:
    """Broker → the origins of the streams that it keeps, for brokers that keep any."""
    kept: dict[str, list[str]] = {}
    for origin, stream in streams.items():
        for keeper in stream.keepers:
            kept.setdefault(keeper, []).append(origin)
    return kept


def read_replication(table: Table, options: Options) -> Options:
    """Read `[replication]` into the options of the network."""
    if table.has("keepers"):
        raise table.error(
            "keepers", "belongs to one broker; write it in [brokers.NAME] of the stream's origin"
        )
    table.only(("copies", "confirm", "prefer"))
    copies = table.integer("copies", 1, 1, COPIES_MAX)
    confirm = table.integer("confirm", _majority(copies), 1, COPIES_MAX)
    _check_confirm(table, copies, confirm)
    words = get_args(Prefer)
    prefer = cast("Prefer", table.choice("prefer", words, words[0]))
    return msgspec.structs.replace(options, copies=copies, confirm=confirm, prefer=prefer)


def written_replication(options: Options) -> dict[str, object]:
    """The content of `[replication]`; empty if it has nothing to say."""
    values: dict[str, object] = {}
    if options.copies > 1:
        values |= {"copies": options.copies, "confirm": options.confirm}
    if options.prefer != get_args(Prefer)[0]:
        values["prefer"] = options.prefer
    return values


def read_broker_replication(table: Table) -> Replication:
    """Read the keys of replication in the table of one broker."""

    def number(key: str) -> int | None:
        return table.integer(key, 1, 1, COPIES_MAX) if table.has(key) else None

    keepers = tuple(table.texts("keepers"))
    return Replication(copies=number("copies"), confirm=number("confirm"), keepers=keepers)


def check_replication(
    root: Table, network: Network, options: Options, brokers: Mapping[str, Replication]
) -> None:
    """Check the replication of every stream, where `options` are those of the network."""
    table = root.table("replication")
    if problem := copies_problem(network, options.copies):
        raise table.error("copies", problem)
    tables = root.table("brokers")
    for name, given in brokers.items():
        _check_broker(tables.table(name), network, name, given, options)


def _check_broker(
    table: Table, network: Network, name: str, given: Replication, options: Options
) -> None:
    key = next((key for key in REPLICATION_KEYS if table.has(key)), None)
    if key is None:
        return
    if name not in network.edges:
        raise table.error(
            key,
            f"broker {name!r} serves no clients, so it has no stream; remove this key, which it"
            " does not need to keep streams of others",
        )
    copies = options.copies if given.copies is None else given.copies
    _check_confirm(table, copies, 1 if given.confirm is None else given.confirm)
    if problem := copies_problem(network, copies):
        raise table.error("copies", problem)
    if given.keepers:
        _check_keepers(table, network, name, copies, given.keepers)


def _check_keepers(
    table: Table, network: Network, name: str, copies: int, keepers: tuple[str, ...]
) -> None:
    for number, keeper in enumerate(keepers):
        if keeper not in network.brokers:
            raise table.error(
                ("keepers", number),
                f"unknown broker {keeper!r}; {nearest(keeper, network.brokers)}",
            )
        if problem := keeper_problem(network, name, keepers, number):
            raise table.error(("keepers", number), problem)
    if problem := keepers_problem(name, copies, keepers):
        raise table.error("keepers", problem)


def _check_confirm(table: Table, copies: int, confirm: int) -> None:
    if confirm > copies:
        raise table.error(
            "confirm",
            f"confirm = {confirm} exceeds copies = {copies}; give at most confirm = {copies}, or"
            f" copies = {confirm}",
        )


def _majority(copies: int) -> int:
    return copies // 2 + 1
