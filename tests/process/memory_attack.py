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
    subscriptions sessions that subscribe to filters of 47 kB each, until they are refused
"""

import argparse
import asyncio
import contextlib
import random
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

import anabranch
from anabranch.client.client import Client
from anabranch.local.network import LocalNetwork
from anabranch.model.client_frames import (
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
from tests.process_parts import BRISK, network_file, status, until

ALONE = """
[network]
name = "alone"
[tree]
a = []
"""
COST_BYTES_MAX = 256 * 1024 * 1024
FRAME_BYTES = 16 * 1024 * 1024
_PIECE = memoryview(bytes(1024 * 1024))
#: A client that hears nothing for this long is not answered.
_ANSWER_S = 60.0
_PAUSE_S = 0.01
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

    @classmethod
    async def at(cls, address: str, name: str, *, is_known: bool = True) -> "Intruder":
        """Connect and greet; with `is_known`, begin a session."""
        host, _, port = address.rpartition(":")
        plug = socket.socket()
        plug.setblocking(False)
        # What the kernel does not hold for us, the broker has to.
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await asyncio.get_running_loop().sock_connect(plug, (host, int(port)))
        intruder = cls(plug, name)
        hello = Greeting(kind="client", network="", name=name, frame_bytes_max=FRAME_BYTES)
        await intruder.send(framed(encode_greeting(hello)))
        try:
            decode_greeting(await intruder._frame())
        except BaseException:
            plug.close()
            raise
        if is_known:
            await intruder.say(Connect(PROTOCOL_VERSION, name))
        return intruder

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
        with contextlib.suppress(ConnectionError, EOFError, TimeoutError):
            while True:
                async with asyncio.timeout(0.2):
                    frame = decode_client(await self._frame())
                if isinstance(frame, Cut):
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

    def close(self) -> None:
        """Be gone."""
        self._plug.close()


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
        await until(lambda: len(self.received) > 10, "the honest pair works")

    async def end(self) -> None:
        """Wait until all that was published has come."""
        self._is_over = True
        await self._tasks[1]
        with contextlib.suppress(AssertionError):
            await until(lambda: len(set(self.received)) >= self.published, "all has come")
        self._tasks[0].cancel()

    @property
    def repeated(self) -> int:
        """Events that came again."""
        return len(self.received) - len(set(self.received))


@asynccontextmanager
async def honest_pair(address: str) -> AsyncIterator[Pair]:
    """A pair that works."""
    async with (
        await anabranch.connect(address, name="honest-publisher", options=BRISK) as publisher,
        await anabranch.connect(address, name="honest-subscriber", options=BRISK) as subscriber,
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


Attack = Callable[[str, float], Awaitable[list[Intruder]]]


async def _sequential(address: str, scale: float, *, is_known: bool = True) -> list[Intruder]:
    intruders = []
    for number in range(max(int(559 * scale), 20)):
        try:
            intruder = await Intruder.at(address, f"intruder-{number}", is_known=is_known)
        except (ConnectionError, EOFError, anabranch.AnabranchError):
            continue
        await intruder.send_most_of_a_frame()
        intruder.close()
        intruders.append(intruder)
    return intruders


async def _unknown(address: str, scale: float) -> list[Intruder]:
    return await _sequential(address, scale, is_known=False)


async def _held(address: str, scale: float) -> list[Intruder]:
    intruders = []
    for number in range(max(int(100 * scale), 10)):
        intruder = await Intruder.at(address, f"intruder-{number}")
        await intruder.send_most_of_a_frame()
        intruders.append(intruder)
    return intruders


async def _subscribers(address: str, scale: float) -> list[Intruder]:
    intruders = []
    for number in range(60):
        intruder = await Intruder.at(address, f"intruder-{number}")
        await intruder.say(
            Subscribe(1, f"idle-{number}", "flood > 0", "durable", number=1, window=65_535)
        )
        while not isinstance(await intruder.hear(), Subscribed):
            pass
        intruders.append(intruder)
    async with await anabranch.connect(address, name="flooder", options=BRISK) as flooder:
        for batch in range(max(int(100 * scale), 10)):
            events = [{"flood": batch * 1_000 + number + 1} for number in range(1_000)]
            await flooder.publish_many(events, payload=bytes(1_000))
    return intruders


async def _staging(address: str, scale: float) -> list[Intruder]:
    intruders = []
    drafts = [encode_draft(Event({"n": 1}, payload=bytes(64_000))) for _ in range(200)]
    for number in range(max(int(40 * scale), 4)):
        intruder = await Intruder.at(address, f"intruder-{number}")
        intruders.append(intruder)
        for index in range(10):
            try:
                await intruder.say(Stage(index + 1, f"token-{number}", index, drafts))
                while not isinstance(answer := await intruder.hear(), Staged | Refused):
                    pass
            except (ConnectionError, EOFError):
                break
            if isinstance(answer, Refused):
                break
    return intruders


async def _fetches(address: str, scale: float) -> list[Intruder]:
    async with await anabranch.connect(address, name="filler", options=BRISK) as filler:
        # Somebody who is away needs all of it, so the log keeps it.
        async with await anabranch.connect(address, name="keeper", options=BRISK) as keeper:
            await keeper.subscribe("filled > 0", durable="keeps")
        for _ in range(8):
            await filler.publish_many([{"filled": 1}] * 1_000, payload=random.randbytes(1_000))
    intruders, oldest = [], 1
    for number in range(max(int(60 * scale), 20)):
        try:
            intruder = await Intruder.at(address, f"intruder-{number}")
        except (ConnectionError, EOFError, anabranch.AnabranchError):
            continue
        intruders.append(intruder)
        await intruder.say(Describe(1))
        while not isinstance(answer := await intruder.hear(), Described | Refused):
            pass
        if isinstance(answer, Described):
            oldest = answer.oldest
        # Who is refused asks all the same.
        for request in range(4):
            await intruder.say(Fetch(request + 2, oldest, 1 << 40, "", 1 << 30))
    for intruder in intruders:
        with contextlib.suppress(ConnectionError, EOFError):
            # The broker has begun to answer; the rest is left to it.
            await intruder.hear_length()
    return intruders


async def _subscriptions(address: str, scale: float) -> list[Intruder]:
    intruders = []
    for number in range(max(int(8 * scale), 3)):
        intruder = await Intruder.at(address, f"intruder-{number}")
        intruders.append(intruder)
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
    return intruders


ATTACKS: dict[str, Attack] = {
    "sequential": _sequential,
    "unknown": _unknown,
    "held": _held,
    "subscribers": _subscribers,
    "staging": _staging,
    "fetches": _fetches,
    "subscriptions": _subscriptions,
}


async def attack(name: str, folder: Path, scale: float = 1.0) -> Outcome:
    """Run one attack against a broker of its own."""
    async with LocalNetwork(network_file(ALONE), folder) as network:
        address = network.address("a")
        pid = (await status(network, "a")).pid
        async with honest_pair(address) as pair:
            idle = memory_of(pid, "VmRSS")
            intruders = await ATTACKS[name](address, scale)
            before = len(pair.received)
            await until(lambda: len(pair.received) > before + 10, "the honest pair goes on")
            told = [await each.was_told() for each in intruders if each._plug.fileno() >= 0]
            for each in intruders:
                each.close()
            await pair.end()
            peak, after = memory_of(pid, "VmHWM"), memory_of(pid, "VmRSS")
    return Outcome(
        attack=name,
        connections=len(intruders),
        told=sum(told),
        idle_bytes=idle,
        peak_bytes=peak,
        after_bytes=after,
        cost_bytes=max(peak - idle, 0),
        honest=pair.published,
        lost=pair.published - len(set(pair.received)),
        repeated=pair.repeated,
    )


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
