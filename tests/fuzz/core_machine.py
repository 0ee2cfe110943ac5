"""The pure core against hostile parties, as machines of rules.

With hostile *clients* beside an honest publisher and honest subscribers: whatever the hostile ones
say, no broker fails, every broker starts again from its disk, and the honest ones get what is
promised: everything that was published, once, in order.

With hostile *brokers* as well: a broker that lies within the protocol is believed
(docs/explanation/guarantees.md), so the honest clients are promised nothing. What must hold is that
no broker fails, that each starts again, and that steps and catalogs stay within their bounds.

State: one example's.
"""

import os
from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from anabranch.core import contract
from anabranch.core.routing.registry import RoutingName
from anabranch.model.frames import Hello
from tests.fuzz.core_world import HOSTILE, VOCABULARY, FuzzedNetwork
from tests.fuzz.hostile_frames import (
    BOUNDARIES,
    FILTERS,
    ODD_NAMES,
    client_stories,
    frames,
    link_frames,
)
from tests.fuzz.symbols import twisted

#: Steps are timed only in the soak: elsewhere that would judge the machine.
IS_SOAK = os.environ.get("ANABRANCH_HYPOTHESIS_PROFILE") == "soak"
#: What everything takes to arrive when the hostile parties are gone.
SETTLE_S = 120.0
CLIENTS = 3
EDGES = st.sampled_from(["a", "b"])
#: "": a client that does not greet.
GREETINGS = st.sampled_from([*VOCABULARY.clients * 4, ""])
CLIENT_FRAMES = client_stories(VOCABULARY)
MANY_CLIENT_FRAMES = client_stories(VOCABULARY, 12)
HELLOS = frames(Hello, VOCABULARY)
LINK_FRAMES = st.lists(link_frames(VOCABULARY), min_size=1, max_size=4)


class HostileClients(RuleBasedStateMachine):
    """Hostile clients beside honest ones, on a tree."""

    routing: RoutingName = "tree"
    has_hostile_brokers = False
    has_copies = False

    def __init__(self) -> None:
        super().__init__()
        #: Set by a rule that ends well; a machine that failed in one need not settle.
        self._is_well = False
        self.network = FuzzedNetwork(
            self.routing,
            has_hostiles=self.has_hostile_brokers,
            has_clock=IS_SOAK,
            has_copies=self.has_copies,
        )
        self._is_well = True

    # -- hostile clients

    @rule(who=st.integers(0, CLIENTS - 1), edge=EDGES, name=GREETINGS, frames=CLIENT_FRAMES)
    def client_says(self, who: int, edge: str, name: str, frames: Sequence[msgspec.Struct]) -> None:
        self._is_well = False
        self.network.hostile_clients[who].says(edge, frames, name)
        self._passes(0.05)

    @rule(who=st.integers(0, CLIENTS - 1), edge=EDGES, name=GREETINGS, frames=CLIENT_FRAMES)
    def client_comes_and_says(
        self, who: int, edge: str, name: str, frames: Sequence[msgspec.Struct]
    ) -> None:
        self.network.hostile_clients[who].leaves()
        self.client_says(who, edge, name, frames)

    @rule(who=st.integers(0, CLIENTS - 1), edge=EDGES, frames=MANY_CLIENT_FRAMES)
    def client_says_much(self, who: int, edge: str, frames: Sequence[msgspec.Struct]) -> None:
        self.client_says(who, edge, VOCABULARY.clients[who], frames)

    @rule(who=st.integers(0, CLIENTS - 1))
    def client_leaves(self, who: int) -> None:
        self._is_well = False
        self.network.hostile_clients[who].leaves()
        self._passes(0.0)

    @rule(who=st.integers(0, CLIENTS - 1), full=st.booleans())
    def client_is_full(self, who: int, full: bool) -> None:
        self._is_well = False
        self.network.hostile_clients[who].full(full)
        self._passes(0.0)

    # -- honest clients

    @rule(count=st.integers(1, 4))
    def honest_publishes(self, count: int) -> None:
        self._is_well = False
        self.network.publisher.publish(count)
        self._passes(0.02)

    @rule(who=st.sampled_from(["publisher", "durable", "live"]))
    def honest_reconnects(self, who: str) -> None:
        self._is_well = False
        getattr(self.network, who).leave()
        self._passes(0.02)

    # -- brokers, disks, time

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self._passes(seconds)

    @rule(name=st.sampled_from(["a", "b", "h1"]))
    def broker_crashes(self, name: str) -> None:
        self._is_well = False
        self.network.crash(name)
        self._passes(0.2)

    @rule(count=st.integers(1, 4), seconds=st.sampled_from([0.004, 0.007, 0.01, 0.02]))
    def origin_crashes_after_publish(self, count: int, seconds: float) -> None:
        """Perhaps before the disk has it, perhaps after its publisher was told so."""
        self._is_well = False
        self.network.publisher.publish(count)
        self.network.passes(seconds)
        self.network.crash("a")
        self._passes(0.2)

    @rule(pattern=st.sampled_from(VOCABULARY.patterns), here=EDGES, there=EDGES)
    def operator_moves_pattern(self, pattern: str, here: str, there: str) -> None:
        self._is_well = False
        self.network.world.stimulate(here, contract.MoveJoinPoint(pattern, there))
        self._passes(0.02)

    @rule(sync_s=st.sampled_from([0.004, 0.004, 0.8]))
    def disks_are_slow(self, sync_s: float) -> None:
        self.network.world.weather.sync_s = sync_s

    @rule(name=EDGES, full=st.booleans())
    def disk_is_full(self, name: str, full: bool) -> None:
        self._is_well = False
        self.network.world.stimulate(name, contract.LogFull(full))
        self._passes(0.0)

    def _passes(self, seconds: float) -> None:
        self._is_well = False
        self.network.passes(seconds)
        self._is_well = True

    # -- in the end

    def teardown(self) -> None:
        """Expel the hostile parties, start every broker again, and see what came of it."""
        if not self._is_well:
            return
        network, publisher = self.network, self.network.publisher
        network.world.weather.sync_s = 0.004
        network.passes(0.5)
        network.expel_hostiles()
        for name in network.honest_brokers:
            network.crash(name)
        network.passes(2.0)
        publisher.publish(1)
        if self.has_hostile_brokers:
            network.passes(20.0)
            return
        everything = publisher.published
        assert network.settles(lambda: publisher.confirmed == everything, SETTLE_S), (
            f"{publisher.confirmed} of {everything} are confirmed"
        )
        assert network.settles(lambda: network.durable.last == everything, SETTLE_S), (
            f"{network.durable.last} of {everything} came to the durable subscriber"
        )
        network.passes(2.0)
        publisher.publish(1)
        assert network.settles(lambda: network.live.last == everything + 1, SETTLE_S), (
            f"the live subscriber got {network.live.last}, not {everything + 1}"
        )


class HostileClientsOnMesh(HostileClients):
    """The same on a mesh."""

    routing = "mesh"


class HostileBrokers(HostileClients):
    """Hostile brokers as well."""

    has_hostile_brokers = True

    @rule(who=st.sampled_from(HOSTILE), place=st.integers(0, 2), frames=LINK_FRAMES)
    def broker_lies(self, who: str, place: int, frames: Sequence[msgspec.Struct]) -> None:
        self._is_well = False
        self.network.lie(who, place, frames)
        self._passes(0.05)

    @rule(who=st.sampled_from(HOSTILE), place=st.integers(0, 2), back=st.integers(0, 9))
    def broker_repeats(self, who: str, place: int, back: int) -> None:
        """It says to one neighbour what another one said."""
        self._is_well = False
        self.network.repeat(who, place, back)
        self._passes(0.05)

    @rule(
        who=st.sampled_from(HOSTILE),
        place=st.integers(0, 2),
        back=st.integers(0, 15),
        path=st.lists(st.integers(0, 9), min_size=1, max_size=5),
        number=st.sampled_from((1, -1, *BOUNDARIES)),
        name=st.sampled_from((*VOCABULARY.brokers, *ODD_NAMES, *FILTERS)),
    )
    def broker_twists(
        self, *, who: str, place: int, back: int, path: list[int], number: int, name: str
    ) -> None:
        """It says what it was told, with one part changed."""
        self._is_well = False
        self.network.repeat(who, place, back, lambda each: twisted(each, path, number, name))
        self._passes(0.05)

    @rule(who=st.sampled_from(HOSTILE), place=st.integers(0, 2), hello=HELLOS)
    def broker_greets(self, who: str, place: int, hello: Hello) -> None:
        self._is_well = False
        self.network.greets(who, place, hello)
        self._passes(0.6)

    @rule(who=st.sampled_from(HOSTILE), silent=st.booleans())
    def broker_is_silent(self, who: str, silent: bool) -> None:
        self.network.hostile(who).is_silent = silent


class HostileBrokersOnMesh(HostileBrokers):
    """The same on a mesh."""

    routing = "mesh"


class HostileClientsWithCopies(HostileClients):
    """Hostile clients; streams have copies."""

    has_copies = True


class HostileBrokersWithCopies(HostileBrokers):
    """Hostile brokers, which lie to keepers and in the name of keepers."""

    has_copies = True


class HostileBrokersWithCopiesOnMesh(HostileBrokersWithCopies):
    """The same on a mesh."""

    routing = "mesh"
