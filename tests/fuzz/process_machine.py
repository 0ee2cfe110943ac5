"""Real broker processes against hostile sockets, as machines of rules.

`HostileClients` has hostile clients and strangers on all ports, and an honest pair whose service is
promised. In `HostileLinks` somebody speaks as a broker of the network; it is believed, so nothing
is promised to clients, and the brokers have to live, stay small and come back.

State: one example's sockets; the processes are shared (`process_world`).
"""

from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from anabranch.wire.framing import framed
from tests.fuzz.hostile_frames import LARGE, client_stories, link_frames
from tests.fuzz.process_world import (
    IS_SOAK,
    NAMES,
    VOCABULARY,
    FuzzedBrokers,
    HostileSocket,
)

CLIENT_FRAMES = client_stories(VOCABULARY, 8)
LINK_FRAMES = st.lists(link_frames(VOCABULARY), min_size=1, max_size=8)
BROKERS = st.sampled_from(NAMES)
CLIENTS = st.sampled_from(VOCABULARY.clients)
PORTS = st.sampled_from(["clients", "links", "observe"])
FLOOD = 100
#: Rules between two thorough checks.
CHECK_EVERY = 5
#: Times that the rule is chosen for one kill.
KILL_ONCE_IN = 12 if IS_SOAK else 40
#: The same of a large frame, which takes a broker its time.
LARGE_ONCE_IN = 1 if IS_SOAK else 20
GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [
            b"\xff\xff\xff\xff" + bytes(100),
            bytes(1_000),
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET /status HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 500 + b"\r\n",
            b"POST /../../etc HTTP/9.9\r\nContent-Length: 99999999999\r\n\r\n",
            framed(b"\x93\x01\x02\x03"),
        ]
    ),
    st.binary(min_size=1, max_size=100).map(framed),
)


class HostileClients(RuleBasedStateMachine):
    """Hostile clients and strangers, beside an honest pair."""

    shared: ClassVar[FuzzedBrokers]

    def __init__(self) -> None:
        super().__init__()
        self.shared.ready()
        self._sockets: dict[str, HostileSocket] = {}
        self._rules = 0
        # Until it ends well.
        self.shared.is_spoilt = True
        #: Whether the last step ended well.
        self._is_well = True

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._is_well = False
        self.shared.run(work)
        self._is_well = True

    @rule(name=BROKERS, client=CLIENTS, frames=CLIENT_FRAMES)
    def client_says(self, name: str, client: str, frames: Sequence[msgspec.Struct]) -> None:
        self._run(self._says(name, client, frames))

    @rule(name=BROKERS, client=CLIENTS, frames=CLIENT_FRAMES)
    def client_says_more(self, name: str, client: str, frames: Sequence[msgspec.Struct]) -> None:
        self._run(self._says(name, client, frames))

    @rule(name=BROKERS, client=CLIENTS, frames=CLIENT_FRAMES)
    def client_comes_and_says(
        self, name: str, client: str, frames: Sequence[msgspec.Struct]
    ) -> None:
        self._run(self._leaves(client, is_rude=False))
        self._run(self._says(name, client, frames))

    async def _says(self, name: str, client: str, frames: Sequence[msgspec.Struct]) -> None:
        socket = await self._socket(name, client)
        socket.say(frames, self.shared.journal)
        await socket.answered()

    async def _socket(self, name: str, client: str) -> HostileSocket:
        found = self._sockets.get(client)
        if found is None or found.is_over:
            if found is not None:
                await found.close()
            found = self._sockets[client] = await HostileSocket.at(
                self.shared.place(name, "clients")
            )
            found.greet(client)
        return found

    @rule(name=BROKERS, client=CLIENTS, frames=CLIENT_FRAMES)
    def client_floods(self, name: str, client: str, frames: Sequence[msgspec.Struct]) -> None:
        async def floods() -> None:
            socket = await self._socket(name, client)
            data = b"".join(socket.say(frames, self.shared.journal))
            socket.send(data * FLOOD)
            await socket.answered()

        self._run(floods())

    @rule(
        name=BROKERS,
        client=CLIENTS,
        kind=st.sampled_from(list(LARGE)),
        part=st.sampled_from([0.3, 1.0]),
        seed=st.integers(0, 11),
        dice=st.integers(1, LARGE_ONCE_IN),
    )
    def client_says_very_much(
        self, *, name: str, client: str, kind: str, part: float, seed: int, dice: int
    ) -> None:
        async def says() -> None:
            socket = await self._socket(name, client)
            what = f"LARGE[{kind!r}]({part}, {seed})"
            socket.say_large(LARGE[kind](part, seed), self.shared.journal, what)
            await socket.answered()
            await self.shared.check()

        if dice == LARGE_ONCE_IN:
            self._run(says())

    @rule(name=BROKERS, client=CLIENTS, frames=CLIENT_FRAMES, part=st.integers(1, 99))
    def client_says_half(
        self, name: str, client: str, frames: Sequence[msgspec.Struct], part: int
    ) -> None:
        async def says_half() -> None:
            socket = await self._socket(name, client)
            for data in socket.say(frames[:1], self.shared.journal):
                socket.send(data[: len(data) * part // 100])
            await self._leaves(client, is_rude=part % 2 == 0)

        self._run(says_half())

    @rule(name=BROKERS, client=CLIENTS, garbage=GARBAGE)
    def client_says_garbage(self, name: str, client: str, garbage: bytes) -> None:
        async def says_garbage() -> None:
            socket = await self._socket(name, client)
            socket.send(garbage)
            await self._leaves(client, is_rude=False)

        self._run(says_garbage())

    @rule(client=CLIENTS)
    def client_stops_reading(self, client: str) -> None:
        if client in self._sockets:
            self._sockets[client].pause()

    @rule(client=CLIENTS, is_rude=st.booleans())
    def client_leaves(self, client: str, is_rude: bool) -> None:
        self._run(self._leaves(client, is_rude=is_rude))

    async def _leaves(self, client: str, *, is_rude: bool) -> None:
        socket = self._sockets.pop(client, None)
        if socket is not None:
            await socket.close(is_rude=is_rude)

    @rule(name=BROKERS, port=PORTS, garbage=GARBAGE, is_rude=st.booleans())
    def stranger_says_garbage(self, name: str, port: str, garbage: bytes, is_rude: bool) -> None:
        async def says() -> None:
            socket = await HostileSocket.at(self.shared.place(name, port))
            socket.send(garbage)
            await socket.close(is_rude=is_rude)

        self._run(says())

    @rule(name=BROKERS, dice=st.integers(1, KILL_ONCE_IN))
    def broker_is_killed(self, name: str, dice: int) -> None:
        """Now and then, for a start takes its time."""
        if dice == KILL_ONCE_IN:
            self._is_well = False
            self.shared.kill(name)
            self._run(self.shared.check())

    @rule()
    def honest_pair_goes_on(self) -> None:
        self._run(self.shared.honest_goes_on())

    @invariant()
    def brokers_are_well(self) -> None:
        self._rules += 1
        self._run(self.shared.settled())
        if self._rules % CHECK_EVERY == 0:
            self._run(self.shared.check())

    def teardown(self) -> None:
        """Hostile ones leave; everything must be as it should."""
        for client in list(self._sockets):
            self.shared.run(self._leaves(client, is_rude=False))
        if not self._is_well:
            return
        self._run(self.shared.check())
        self._run(self.shared.honest_goes_on())
        self.shared.is_spoilt = False


class HostileLinks(HostileClients):
    """Somebody speaks as a broker of the network as well."""

    @rule(frames=LINK_FRAMES)
    def broker_lies(self, frames: Sequence[msgspec.Struct]) -> None:
        async def lies() -> None:
            link = self._sockets.get("A0")
            if link is None or link.is_over:
                await self._leaves("A0", is_rude=False)
                link = self._sockets["A0"] = await HostileSocket.at(
                    self.shared.place("B1", "links")
                )
                link.greet("A0", is_link=True)
                await link.heard()
            link.say(frames, self.shared.journal)
            await self.shared.check()

        self._run(lies())
