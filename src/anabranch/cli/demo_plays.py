"""What is played in the demonstration: on which network, by whom, and what is done to it.

    PLAYS["tree"]    the shape `redundant`: eleven brokers, sites of two and three relays
    PLAYS["mesh"]    the shape `braided`: ten brokers with ways round and round

A publisher that advertises publishes nothing else; one that does not may publish anything. This
module keeps no state.
"""

import asyncio
from typing import Literal

import msgspec

from anabranch.client.options import ClientOptions
from anabranch.local.drill import Trial

PlayName = Literal["tree", "mesh"]
_BRISK = ClientOptions(connect_within_s=30.0, pause_last_s=0.5)


class Listens(msgspec.Struct, frozen=True):
    """A subscriber."""

    name: str
    filter: str
    #: By preference.
    edges: tuple[str, ...]
    is_durable: bool = False


class Speaks(msgspec.Struct, frozen=True):
    """A publisher."""

    name: str
    edges: tuple[str, ...]
    advertised: tuple[str, ...] = ()


class Blow(msgspec.Struct, frozen=True):
    """Brokers that are killed together, and how that is told."""

    what: str
    victims: tuple[str, ...]


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """A demonstration. See the top of this module."""

    shape: str
    listeners: tuple[Listens, ...]
    speakers: tuple[Speaks, ...]
    blows: tuple[Blow, ...]


PLAYS: dict[PlayName, Play] = {
    "tree": Play(
        shape="redundant",
        listeners=(
            Listens("acme", "symbol = 'ACME' AND price > 10", ("e3", "e4"), True),
            Listens("bargains", "price < 60", ("e2", "e1"), True),
            Listens("movers", "change > 1 OR change < -1", ("e4", "e2")),
            Listens(
                "london", "exchange = 'LON' AND symbol IN ('BOLT', 'CRUX', 'DUNE')", ("e3", "e4")
            ),
            Listens("blocks", "volume BETWEEN 80000 AND 100000", ("e1", "e2")),
        ),
        speakers=(Speaks("west", ("e1",)), Speaks("east", ("e4",))),
        blows=(
            Blow("a relay", ("w1",)),
            Blow("a whole site but one broker", ("c1", "c2")),
            Blow("an edge, whose clients roam", ("e3",)),
        ),
    ),
    "mesh": Play(
        shape="braided",
        listeners=(
            Listens("acme", "symbol = 'ACME' AND price > 10", ("e3", "e4"), True),
            Listens("bargains", "price < 60", ("e2", "e1"), True),
            Listens("movers", "change > 1 OR change < -1", ("e6", "e4")),
            Listens(
                "london", "exchange = 'LON' AND symbol IN ('BOLT', 'CRUX', 'DUNE')", ("e4", "e3")
            ),
            Listens("blocks", "volume BETWEEN 80000 AND 100000", ("e5", "e1")),
        ),
        speakers=(
            Speaks("west", ("e1",), ("exchange = 'LON'", "exchange = 'NYC' AND price > 10")),
            Speaks("east", ("e3",), ("exchange = 'TYO'",)),
            Speaks("anything", ("e6",)),
        ),
        blows=(
            Blow("a relay", ("r1",)),
            Blow("half of the relays", ("r2", "r3")),
            Blow("a relay, and an edge, whose clients roam", ("r4", "e3")),
        ),
    ),
}


async def populate(drill: Trial, play: Play, rate: float) -> None:
    """Everybody connects; publishers share the rate."""
    async with asyncio.TaskGroup() as everyone:
        for each in play.listeners:
            everyone.create_task(
                drill.listen(
                    each.name, each.filter, *each.edges, durable=each.is_durable, options=_BRISK
                )
            )
    share = rate / len(play.speakers)
    for one in play.speakers:
        await drill.speak(
            one.name, *one.edges, rate=share, advertised=one.advertised, options=_BRISK
        )
