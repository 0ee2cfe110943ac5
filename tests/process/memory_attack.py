"""Clients that want a broker's memory, while an honest pair works beside them.

    python -m tests.process.memory_attack --json [--attack held] [--scale 0.1]

Each attack runs against a broker process of its own. The honest pair, a publisher and a durable
subscriber, is there before it and stays until the end. The cost of an attack is the most resident
memory that the kernel saw of the broker (VmHWM), less what it had when only the pair was there.
Exit code 1 if an attack cost more than `COST_BYTES_MAX`, or the pair lost or repeated anything.

    sequential    connections one after the other: a frame of 16 MiB is announced, all but one byte
                  of it is sent, the connection is closed
    unknown       the same without `Connect`
    held          the same with `Connect`, and all connections stay open
    subscribers   durable subscribers that never read, while 100 MB are published for them
    staging       sessions that stage events which nobody commits, until they are refused
    fetches       sessions that ask for much of the log and never read it
    handshakes    connections to a port with TLS that never finish the handshake: half of them are
                  silent, half send most of a large hello
    tls-sessions  sessions with TLS, each with a frame and a record that are not complete
    subscriptions sessions that subscribe to filters of 47 kB each, until they are refused
"""

import argparse
import asyncio
import contextlib
import random
import resource
import socket
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

import anabranch
from anabranch.client.client import Client
from anabranch.config.certificates import make_certificates
from anabranch.config.network_file import NetworkFile, loads
from anabranch.devnet.network import LocalNetwork
from anabranch.model.client_frames import (
    Ack,
    AnyClientFrame,
    Connect,
    Cut,
    Describe,
    Described,
    Fetch,
    Refused,
    Stage,
    Staged,
    Subscribe,
    Subscribed,
)
from anabranch.model.encoding import encode_draft
from anabranch.model.event import Event
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.wire.codec import decode_client, encode_client
from anabranch.wire.framing import LENGTH_BYTES, framed
from anabranch.wire.greeting import Greeting, decode_greeting, encode_greeting
from tests.process_parts import BRISK, network_file, status, until, until_asked

ALONE = """
[network]
name = "alone"
[tree]
a = []
"""
#: The same with TLS, which the honest pair uses too.
SECURE = f"""{ALONE}
[tls]
ca = "certificates/ca.pem"
certificate = "certificates/{{broker}}.pem"
key = "certificates/{{broker}}.key"
"""
COST_BYTES_MAX = 256 * 1024 * 1024
FRAME_BYTES = 16 * 1024 * 1024
_PIECE = memoryview(bytes(1024 * 1024))
#: A client that hears nothing for this long is not answered.
_ANSWER_S = 300.0
_PAUSE_S = 0.01
#: More than a frame that says why a session is cut.
_CUT_BYTES_MAX = 8_192
#: The first time on a machine they are compiled.
_KERNELS_S = 300.0
#: Events of the pair that are behind a flood come late: a broker sends hundreds of megabytes before
#: them, for half a minute on a slow machine. What is lost never comes.
_LATE_S = 300.0
_encoder = msgspec.json.Encoder(order="deterministic")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one attack came to."""

    attack: str
    #: Connections of attackers, and those of them that were told that they are cut.
    connections: int
    told: int
    #: Resident memory before, the most that it was, and after everybody was gone.
    idle_bytes: int
    peak_bytes: int
    after_bytes: int
    cost_bytes: int
    #: Events of the honest pair; those that did not come, and those that came twice.
    honest: int
    lost: int
    repeated: int


class Intruder:
    """One connection of somebody who means harm."""

    def __init__(self, plug: socket.socket, name: str) -> None:
        self._plug = plug
        self.name = name

    async def greet(self, *, is_known: bool = True) -> None:
        """Greet; with `is_known`, begin a session."""
        hello = Greeting(kind="client", network="", name=self.name, frame_bytes_max=FRAME_BYTES)
        await self.send(framed(encode_greeting(hello)))
        decode_greeting(await self._frame())
        if is_known:
            await self.say(Connect(PROTOCOL_VERSION, self.name))

    async def say(self, frame: AnyClientFrame) -> None:
        """Send a frame."""
        await self.send(framed(encode_client(frame)))

    async def send(self, data: bytes | memoryview) -> None:
        """Send bytes."""
        await asyncio.get_running_loop().sock_sendall(self._plug, data)

    async def send_most_of_a_frame(self) -> None:
        """All of the largest frame but for its last byte, or less if the broker hangs up."""
        with contextlib.suppress(ConnectionError):
            await self.send(FRAME_BYTES.to_bytes(LENGTH_BYTES))
            for _ in range(FRAME_BYTES // len(_PIECE) - 1):
                await self.send(_PIECE)
            await self.send(_PIECE[:-1])

    async def hear(self) -> AnyClientFrame:
        """The next frame of the broker."""
        async with asyncio.timeout(_ANSWER_S):
            frame = decode_client(await self._frame())
        assert not isinstance(frame, Cut), f"{self.name} was cut: {frame.reason}"
        return frame

    async def hear_length(self) -> int:
        """How long the next frame is; it is not read."""
        async with asyncio.timeout(_ANSWER_S):
            return int.from_bytes(await self._exactly(LENGTH_BYTES))

    async def was_told(self) -> bool:
        """Whether the broker has said that the session is cut, before it hung up."""
        # There may be gigabytes before it.
        self._plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, len(_PIECE))
        with contextlib.suppress(ConnectionError, EOFError, TimeoutError, ssl.SSLError):
            while True:
                async with asyncio.timeout(0.2):
                    frame = await self._frame()
                if len(frame) < _CUT_BYTES_MAX and isinstance(decode_client(frame), Cut):
                    return True
        return False

    async def _frame(self) -> bytes:
        size = int.from_bytes(await self._exactly(LENGTH_BYTES))
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        loop, parts = asyncio.get_running_loop(), []
        while size > 0:
            part = await loop.sock_recv(self._plug, size)
            if not part:
                raise EOFError("the broker has hung up")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    @property
    def is_open(self) -> bool:
        """Whether it is not gone."""
        return self._plug.fileno() >= 0

    def close(self) -> None:
        """Be gone."""
        self._plug.close()


class SecureIntruder(Intruder):
    """The same with TLS, done by hand so that records can be cut."""

    def __init__(self, plug: socket.socket, name: str, context: ssl.SSLContext) -> None:
        super().__init__(plug, name)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)

    async def shake_hands(self) -> None:
        """As TLS wants it."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await super().send(self._outgoing.read())
                await self._more()
            else:
                break
        await super().send(self._outgoing.read())

    async def send(self, data: bytes | memoryview) -> None:
        """Send bytes, encrypted."""
        await self.send_most(data, 0)

    async def send_most(self, data: bytes | memoryview, kept: int) -> None:
        """Send bytes, but for the last of the encrypted ones."""
        self._tls.write(data)
        encrypted = self._outgoing.read()
        await super().send(encrypted[: len(encrypted) - kept])

    async def _more(self) -> None:
        async with asyncio.timeout(_ANSWER_S):
            data = await asyncio.get_running_loop().sock_recv(self._plug, 65_536)
        if not data:
            raise EOFError("the broker has hung up")
        self._incoming.write(data)

    async def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                data = self._tls.read(size - len(found))
            except ssl.SSLWantReadError:
                await self._more()
                continue
            if not data:
                raise EOFError("the broker has hung up")
            found += data
        return bytes(found)


class Crowd:
    """The intruders of one attack: how they come in, and that they are gone afterwards."""

    def __init__(self, address: str, scale: float) -> None:
        self.address = address
        self.scale = scale
        self.intruders: list[Intruder] = []
        self._last = 0

    def count(self, full: int, least: int) -> int:
        """A part of the full number, and at least so many."""
        return max(int(full * self.scale), least)

    async def connected(self) -> Intruder:
        """One more, who has said nothing yet."""
        intruder = Intruder(await _connected(self.address), self._next_name())
        self.intruders.append(intruder)
        return intruder

    async def connected_securely(self, context: ssl.SSLContext) -> SecureIntruder:
        """The same with TLS."""
        intruder = SecureIntruder(await _connected(self.address), self._next_name(), context)
        self.intruders.append(intruder)
        return intruder

    def _next_name(self) -> str:
        self._last += 1
        return f"intruder-{self._last}"

    async def greeted(self, *, is_known: bool = True) -> Intruder:
        """One more, who has greeted; with `is_known`, with a session."""
        intruder = await self.connected()
        try:
            await intruder.greet(is_known=is_known)
        except BaseException:
            self.turned_away(intruder)
            raise
        return intruder

    def turned_away(self, intruder: Intruder) -> None:
        """It did not get in, and does not count."""
        intruder.close()
        self.intruders.remove(intruder)

    def close(self) -> None:
        """All are gone."""
        for each in self.intruders:
            each.close()


async def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    plug = socket.socket()
    plug.setblocking(False)
    # What the kernel does not hold for us, the broker has to.
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    try:
        await asyncio.get_running_loop().sock_connect(plug, (host, int(port)))
    except BaseException:
        plug.close()
        raise
    return plug


class Pair:
    """An honest publisher and a durable subscriber, who must not notice anything."""

    def __init__(self, publisher: Client, subscriber: Client) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self.published = 0
        self.received: list[int] = []
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Both work from now on."""
        subscription = await self._subscriber.subscribe("n > 0", durable="honest")

        async def take() -> None:
            async for received in subscription:
                number = received["n"]
                assert isinstance(number, int)
                self.received.append(number)

        async def give() -> None:
            while not self._is_over:
                await self._publisher.publish({"n": self.published + 1})
                self.published += 1
                await asyncio.sleep(_PAUSE_S)

        self._tasks = [asyncio.create_task(take()), asyncio.create_task(give())]
        await until(lambda: len(self.received) > 10, "the honest pair works", _LATE_S)

    async def end(self) -> None:
        """Wait until all that was published has come."""
        self._is_over = True
        await self._tasks[1]
        with contextlib.suppress(AssertionError):
            await until(lambda: len(set(self.received)) >= self.published, "all came", _LATE_S)
        self._tasks[0].cancel()

    def has_received(self, count: int) -> bool:
        """Whether more than so many events have come."""
        return len(self.received) > count

    @property
    def repeated(self) -> int:
        """Events that came again."""
        return len(self.received) - len(set(self.received))


@asynccontextmanager
async def honest_pair(address: str, authority: Path | None = None) -> AsyncIterator[Pair]:
    """A pair that works."""
    connect = partial(anabranch.connect, address, options=BRISK, tls=authority)
    async with (
        await connect(name="honest-publisher") as publisher,
        await connect(name="honest-subscriber") as subscriber,
    ):
        pair = Pair(publisher, subscriber)
        await pair.begin()
        yield pair


def memory_of(pid: int, field: str) -> int:
    """A field of the kernel's account of a process, such as VmRSS, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise LookupError(f"process {pid} has no {field}")


async def has_kernels(network: LocalNetwork) -> bool:
    """Whether the broker has loaded the kernels of its matching index."""
    return (await status(network, "a")).kernels == "loaded"


Attack = Callable[[Crowd], Awaitable[None]]


class Plan(NamedTuple):
    """An attack, and what it is made against."""

    attack: Attack
    has_tls: bool = False


async def _sequential(crowd: Crowd, *, is_known: bool = True) -> None:
    for _ in range(crowd.count(559, 20)):
        try:
            intruder = await crowd.greeted(is_known=is_known)
        except (ConnectionError, EOFError, anabranch.AnabranchError):
            continue
        await intruder.send_most_of_a_frame()
        intruder.close()


async def _unknown(crowd: Crowd) -> None:
    await _sequential(crowd, is_known=False)


async def _held(crowd: Crowd) -> None:
    for _ in range(crowd.count(100, 10)):
        intruder = await crowd.greeted()
        await intruder.send_most_of_a_frame()


async def _subscribers(crowd: Crowd) -> None:
    for number in range(60):
        intruder = await crowd.greeted()
        await intruder.say(
            Subscribe(1, f"idle-{number}", "flood > 0", "durable", number=1, window=65_535)
        )
        while not isinstance(await intruder.hear(), Subscribed):
            pass
    async with await anabranch.connect(crowd.address, name="flooder", options=BRISK) as flooder:
        for batch in range(crowd.count(100, 10)):
            events = [{"flood": batch * 1_000 + number + 1} for number in range(1_000)]
            await flooder.publish_many(events, payload=bytes(1_000))


async def _staging(crowd: Crowd) -> None:
    drafts = [encode_draft(Event({"n": 1}, payload=bytes(64_000))) for _ in range(200)]
    for number in range(crowd.count(40, 4)):
        intruder = await crowd.greeted()
        for index in range(10):
            try:
                await intruder.say(Stage(index + 1, f"token-{number}", index, drafts))
                while not isinstance(answer := await intruder.hear(), Staged | Refused):
                    pass
            except (ConnectionError, EOFError):
                break
            if isinstance(answer, Refused):
                break


async def _fetches(crowd: Crowd) -> None:
    async with await anabranch.connect(crowd.address, name="filler", options=BRISK) as filler:
        # Somebody who is away needs all of it, so the log keeps it.
        async with await anabranch.connect(crowd.address, name="keeper", options=BRISK) as keeper:
            await keeper.subscribe("filled > 0", durable="keeps")
        for _ in range(8):
            await filler.publish_many([{"filled": 1}] * 1_000, payload=random.randbytes(1_000))
    oldest = 1
    for _ in range(crowd.count(60, 20)):
        try:
            intruder = await crowd.greeted()
        except (ConnectionError, EOFError, anabranch.AnabranchError):
            continue
        await intruder.say(Describe(1))
        while not isinstance(answer := await intruder.hear(), Described | Refused):
            pass
        if isinstance(answer, Described):
            oldest = answer.oldest
        # Who is refused asks all the same.
        for request in range(4):
            await intruder.say(Fetch(request + 2, oldest, 1 << 40, "", 1 << 30))
    for intruder in crowd.intruders:
        with contextlib.suppress(ConnectionError, EOFError):
            # The broker has begun to answer; the rest is left to it.
            await intruder.hear_length()


#: A hello of TLS in parts as large as may be, but for its end.
_HELLO_BYTES = 100_000
_HELLO = b"\x01" + _HELLO_BYTES.to_bytes(3) + b"\x03\x03" + bytes(_HELLO_BYTES - 100)
_HELLO_RECORDS = b"".join(
    b"\x16\x03\x01" + len(part).to_bytes(2) + part
    for part in (_HELLO[start : start + 16_384] for start in range(0, len(_HELLO), 16_384))
)


async def _handshakes(crowd: Crowd) -> None:
    for number in range(crowd.count(3_000, 300)):
        intruder = await crowd.connected()
        if number % 2:
            # The oldest ones are cut meanwhile.
            with contextlib.suppress(ConnectionError):
                await intruder.send(_HELLO_RECORDS)


async def _tls_sessions(crowd: Crowd) -> None:
    # Certificates are the broker's business: intruders trust anybody.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for _ in range(crowd.count(2_500, 100)):
        intruder = await crowd.connected_securely(context)
        try:
            await intruder.shake_hands()
            await intruder.greet()
            # A frame that is not complete; its last record is not, either.
            await intruder.send(FRAME_BYTES.to_bytes(LENGTH_BYTES) + bytes(16_000))
            await intruder.send_most(bytes(16_000), 1)
        except (ConnectionError, EOFError, anabranch.AnabranchError):
            crowd.turned_away(intruder)


async def _subscriptions(crowd: Crowd) -> None:
    for number in range(crowd.count(8, 3)):
        intruder = await crowd.greeted()
        for index in range(100):
            filter = " OR ".join(
                f"(x{index}_{n % 7} = {n} AND y > {n}.5 AND z <> '{number}q{n}')"
                for n in range(1_000)
            )
            name = f"large-{number}-{index}"
            await intruder.say(Subscribe(index + 1, name, filter, "durable", number=1))
            while not isinstance(answer := await intruder.hear(), Subscribed | Refused):
                pass
            if isinstance(answer, Refused):
                break


async def _acks(crowd: Crowd) -> None:
    """Acknowledgements of millions of names that nobody has, in one frame."""
    ticks = {f"{number:x}": 1 for number in range(65_535)}
    frame = Ack({f"{number}": ticks for number in range(42)})
    for _ in range(crowd.count(20, 1)):
        intruder = await crowd.greeted()
        await intruder.say(frame)
        assert await intruder.was_told(), "the frame was taken"


ATTACKS = {
    "sequential": Plan(_sequential),
    "unknown": Plan(_unknown),
    "held": Plan(_held),
    "subscribers": Plan(_subscribers),
    "staging": Plan(_staging),
    "fetches": Plan(_fetches),
    "handshakes": Plan(_handshakes, has_tls=True),
    "tls-sessions": Plan(_tls_sessions, has_tls=True),
    "subscriptions": Plan(_subscriptions),
    "acks": Plan(_acks),
}


def _certified(folder: Path) -> NetworkFile:
    file = loads(SECURE, folder / "secure.toml")
    make_certificates(file)
    return file


def _allow_files() -> None:
    """Open as many connections as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def attack(name: str, folder: Path, scale: float = 1.0) -> Outcome:
    """Run one attack against a broker of its own."""
    plan = ATTACKS[name]
    _allow_files()
    file = _certified(folder) if plan.has_tls else network_file(ALONE)
    authority = None if file.tls is None else file.tls.ca
    async with LocalNetwork(file, folder / "network") as network:
        address = network.address("a")
        pid = (await status(network, "a")).pid
        with closing(Crowd(address, scale)) as crowd:
            async with honest_pair(address, authority) as pair:
                # The pair's subscription makes the broker load its kernels: no attack costs that.
                await until_asked(partial(has_kernels, network), "kernels are loaded", _KERNELS_S)
                idle = memory_of(pid, "VmRSS")
                await plan.attack(crowd)
                before = len(pair.received)
                is_going_on = partial(pair.has_received, before + 10)
                await until(is_going_on, "the honest pair goes on", _LATE_S)
                told = await _told(crowd, plan)
                crowd.close()
                await pair.end()
                peak, after = memory_of(pid, "VmHWM"), memory_of(pid, "VmRSS")
    return Outcome(
        attack=name,
        connections=len(crowd.intruders),
        told=told,
        idle_bytes=idle,
        peak_bytes=peak,
        after_bytes=after,
        cost_bytes=max(peak - idle, 0),
        honest=pair.published,
        lost=pair.published - len(set(pair.received)),
        repeated=pair.repeated,
    )


async def _told(crowd: Crowd, plan: Plan) -> int:
    """How many intruders were told that they are cut."""
    left = [each for each in crowd.intruders if each.is_open]
    if plan.has_tls:
        # They have hardly anything to read.
        return sum(await asyncio.gather(*(each.was_told() for each in left)))
    # They may have gigabytes to read, and the pair shares this loop with them.
    return sum([await each.was_told() for each in left])


def is_bad(outcome: Outcome) -> bool:
    """Whether a broker was hurt."""
    return bool(outcome.cost_bytes > COST_BYTES_MAX or outcome.lost or outcome.repeated)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--attack", choices=list(ATTACKS), action="append")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the connections")
    parser.add_argument("--json", action="store_true", help="print one JSON object per attack")
    options = parser.parse_args()
    bad = 0
    for name in options.attack or ATTACKS:
        with tempfile.TemporaryDirectory(prefix="anabranch-memory-") as folder:
            outcome = asyncio.run(attack(name, Path(folder), options.scale))
        bad += is_bad(outcome)
        if options.json:
            sys.stdout.write(_encoder.encode(outcome).decode() + "\n")
        else:
            sys.stdout.write(
                f"{name}: {outcome.cost_bytes / 2**20:.0f} MiB above idle at the peak,"
                f" {(outcome.after_bytes - outcome.idle_bytes) / 2**20:.0f} MiB after;"
                f" {outcome.told} of {outcome.connections} were told;"
                f" {outcome.honest} honest events, {outcome.lost} lost, {outcome.repeated} twice\n"
            )
        sys.stdout.flush()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
