"""Real nodes on loopback with real stores, clients that are a session and a socket, and strangers
that send whatever they like.

Whoever waits does so for a condition, with a bound that is only there to end a test that failed.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

from prometheus_client.parser import text_string_to_metric_families

from anabranch.core.options import Options
from anabranch.core.session.effects import EventDelivered, EventsConfirmed, SendFrame, SessionEffect
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import AnyClientFrame
from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import RemoteError
from anabranch.model.event import Event, Value
from anabranch.model.network import Network
from anabranch.node.node import Node
from anabranch.node.settings import Address, NodeConfig
from anabranch.wire.codec import decode_client, encode_client
from anabranch.wire.framing import LENGTH_BYTES, framed
from anabranch.wire.greeting import Greeting, Kind, decode_greeting, encode_greeting
from anabranch.wire.transport import Connection

BOUND_S = 120.0
HERE = "127.0.0.1"
NETWORK = "shop"
FRAME_BYTES_MAX = 16 * 1024 * 1024
#: Two edges, and a relay between them.
#: Where nobody listens: those who would dial try in vain.
NOWHERE = {name: Address(HERE, 1) for name in ("a", "m", "z")}
CHAIN = Network({"a": ["a"], "middle": ["m"], "z": ["z"]}, [("a", "middle"), ("middle", "z")])
ALONE = Network({"a": ["a"]})
#: Many nodes here have neighbours that never come.
SOON_ALONE = Options(start_alone_after_s=0.05)
PAIR = Network({"a": ["a"], "m": ["m"]}, [("a", "m")])


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110 - nobody tells when it becomes true
            await asyncio.sleep(0.002)


def config(
    name: str, state: Path, network: Network = ALONE, *others: Node, **more: Any
) -> NodeConfig:
    """A node with free ports, that knows where the others listen."""
    anywhere = Address(HERE, 0)
    given = {
        "clients": anywhere if name in network.edges else None,
        "links": anywhere if network.links_of(name) else None,
        "observe": anywhere,
        "neighbours": {other.config.name: address(other, "links") for other in others},
        "options": SOON_ALONE,
        **more,
    }
    return NodeConfig(name=name, network_name=NETWORK, network=network, state=state / name, **given)


def address(node: Node, port: str) -> Address:
    found = getattr(node.addresses, port)
    assert isinstance(found, Address)
    return found


@asynccontextmanager
async def running(config: NodeConfig) -> AsyncIterator[Node]:
    """A node that serves, and is drained in the end."""
    node = Node(config)
    await node.start()
    try:
        yield node
    finally:
        await node.drain()


@asynccontextmanager
async def chain(state: Path, **more: Any) -> AsyncIterator[tuple[Node, Node, Node]]:
    """The three nodes of `CHAIN`, linked."""
    async with (
        running(config("z", state, CHAIN, **more)) as z,
        running(config("m", state, CHAIN, z, **more)) as m,
        running(config("a", state, CHAIN, m, **more)) as a,
    ):
        await until(lambda: all(is_linked(node) for node in (a, m, z)))
        yield a, m, z


def is_asking(node: Node) -> bool:
    """Whether it waits for what its neighbours know of its stream."""
    origin = node.broker.origin
    return origin is not None and origin.inquiry is not None and origin.inquiry.state == "asking"


def is_linked(node: Node) -> bool:
    return all(link.connection is not None for link in node.links.all())


def greeting(kind: Kind = "client", name: str = "c", **more: Any) -> bytes:
    """The first frame of somebody who dials."""
    given = {"network": NETWORK, "frame_bytes_max": FRAME_BYTES_MAX, **more}
    if kind == "link":
        given.setdefault("revision", 1)
    return framed(encode_greeting(Greeting(kind=kind, name=name, **given)))


class Stranger:
    """A socket on which anything may be sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def at(cls, place: Address, tls: ssl.SSLContext | None = None) -> "Stranger":
        return cls(*await asyncio.open_connection(place.host, place.port, ssl=tls))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def pause(self) -> None:
        """Take nothing more from the socket."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Take again."""
        self._transport.resume_reading()

    @property
    def _transport(self) -> asyncio.ReadTransport:
        return cast("asyncio.ReadTransport", self._writer.transport)

    async def frame(self) -> bytes:
        """The next frame that comes."""
        async with asyncio.timeout(BOUND_S):
            size = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
            return await self._reader.readexactly(size)

    async def greeting(self) -> Greeting:
        return decode_greeting(await self.frame())

    async def refusal(self) -> str:
        """Why the greeting was refused; whoever refuses hangs up."""
        try:
            decode_greeting(await self.frame())
        except RemoteError as error:
            await self.end()
            return str(error)
        raise AssertionError("it was not refused")

    async def client_frame(self) -> AnyClientFrame:
        return decode_client(await self.frame())

    async def end(self) -> bytes:
        """Wait until the other side has closed; what it said before."""
        async with asyncio.timeout(BOUND_S):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    def reset(self) -> None:
        """Be gone without a word."""
        plug = self._writer.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._writer.transport.abort()


class RawClient:
    """A session over a socket: no roaming, no reconnecting."""

    def __init__(self, name: str, incarnation: int, frame_bytes_max: int) -> None:
        self.name = name
        self._frame_bytes_max = frame_bytes_max
        self.session = ClientSession(name, incarnation=incarnation)
        self.told: list[SessionEffect] = []
        self.connection: Connection | None = None
        self.is_greeted = False
        self.end = ""

    @classmethod
    async def at(
        cls,
        node: Node,
        name: str,
        incarnation: int = 1,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> "RawClient":
        # It would not send again what is refused while the node asks its neighbours.
        await until(lambda: not is_asking(node))
        client = cls(name, incarnation, frame_bytes_max)
        place = address(node, "clients")
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: Connection(client), place.host, place.port)
        await until(lambda: client.is_greeted or client.end)
        return client

    # -- what it does ---------------------------------------------------------------------------

    def publish(self, *events: Mapping[str, Value]) -> None:
        given = [Event(attributes) for attributes in events]
        self.perform(self.session.publish(time.monotonic(), *given)[1])

    async def subscribe(self, name: str, filter: str, **more: Any) -> None:
        """Returns when the subscription stands and has started on every stream."""
        streams = more.pop("streams", 1)
        self.perform(self.session.subscribe(time.monotonic(), name, filter, **more))
        await until(lambda: len(self.of("SubscriptionStarted")) >= streams)

    def of(self, kind: str) -> list[SessionEffect]:
        return [effect for effect in self.told if type(effect).__name__ == kind]

    def confirmed(self) -> int:
        return max((e.sequence for e in self.told if isinstance(e, EventsConfirmed)), default=0)

    def events(self) -> list[dict[str, Value]]:
        """The events it was given, in order."""
        found = [effect for effect in self.told if isinstance(effect, EventDelivered)]
        return [dict(decode_envelope(each.body).event().attributes) for each in found]

    async def close(self) -> None:
        assert self.connection is not None
        self.connection.hang_up("done")
        await until(lambda: self.end)

    def perform(self, effects: list[SessionEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendFrame):
                assert self.connection is not None
                self.connection.send(encode_client(effect.frame))
            else:
                self.told.append(effect)

    # -- what it hears --------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self.connection = connection
        bytes_max = self._frame_bytes_max
        hello = Greeting(kind="client", network="", name=self.name, frame_bytes_max=bytes_max)
        connection.send(encode_greeting(hello))

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        if not self.is_greeted:
            connection.allow(decode_greeting(frames[0]).frame_bytes_max)
            self.is_greeted = True
            self.perform(self.session.connected(time.monotonic()))
            return
        for frame in frames:
            self.perform(self.session.frame(time.monotonic(), decode_client(frame)))

    def full(self, connection: Connection, full: bool) -> None:
        """It sends little."""

    def closed(self, connection: Connection, reason: str) -> None:
        self.end = reason


def samples_of(text: str) -> dict[str, float]:
    """The samples on a page of metrics, by name and labels, as Prometheus reads them."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found
