"""Broker processes, an honest pair of clients, and hostile sockets on every port.

Two brokers of a mesh run as processes, B1 and B2. A third one, A0, is in the network file and has
no process: whoever dials the link port of B1 and calls itself A0 is taken for it.

What must hold after every step, and is looked at every few of them (`check`): the processes live,
`/health` says so, no log has a line "internal error in the broker", and none ever took more memory
than it did idle plus `BUDGET_BYTES`. In the soak, no step took more than `STEP_S_MAX` of the
processor's time. An honest publisher and a durable subscriber go on as if they were alone.

Every wait has a bound and is for a condition. Processes end by their own ids.

State: the processes and what they hold. Examples share them, for a start takes a second or two; an
example that fails spoils them, and the next one gets new ones in a new folder. So a failure may
come of what an earlier example sent, and not show when the example is tried again (Hypothesis calls
that flaky); a failure names the frames that were sent last (`FuzzedBrokers.journal`).
"""

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from anabranch.core.options import Options
from anabranch.devnet.observe import ask
from anabranch.model.client_frames import Alive, AnyClientFrame, Connect
from anabranch.model.errors import RemoteError
from anabranch.model.frames import PROTOCOL_VERSION, Hello
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.node.settings import Address
from anabranch.wire.codec import decode_client, decode_link, encode_client, encode_link
from anabranch.wire.framing import FrameReader, framed
from anabranch.wire.greeting import Greeting, encode_greeting
from tests.broker_parts import Brokers, Honest
from tests.fuzz.hostile_frames import Vocabulary
from tests.fuzz.known_open import said
from tests.fuzz.symbols import Memory
from tests.process.memory_attack import memory_of
from tests.process_parts import until_asked

Result = TypeVar("Result")
IS_SOAK = os.environ.get("ANABRANCH_HYPOTHESIS_PROFILE") == "soak"
NETWORK = """
[network]
name = "fuzzed"
[mesh]
links = [["A0", "B1"], ["B1", "B2"]]
"""
NAMES = ("B1", "B2")
VOCABULARY = Vocabulary(("A0", "B1", "B2"), ("A0", "B1", "B2"))
#: What clients can make a broker hold at its peak, in all ways at once,
BUDGET_BYTES = DEFAULT_LIMITS.memory_bytes_max
#: and what it holds afterwards, where no frame is as large as may be.
HELD_BYTES_MAX = 256 * 2**20
#: The promise: processor time of one step.
STEP_S_MAX = Options().dead_after_s / 10
BOUND_S = 180.0
#: Beyond this a hostile party does not wait for an answer: it may have been cut off, or may not
#: read.
ANSWER_S = 5.0
#: Frames that a failure names.
JOURNAL_MAX = 40
INTERNAL_ERROR = "internal error in the broker"
FRAME_BYTES_MAX = 16 * 1024 * 1024


class HostileSocket:
    """A connection to one port, which says anything and remembers what it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.memory = Memory()
        self.is_link = False
        self._is_greeted = False
        self._frames = FrameReader()
        #: Set whenever something came, or it is over.
        self._news = asyncio.Event()
        self._alive = 0
        self.is_over = False
        self._task = asyncio.ensure_future(self._read(reader))

    @classmethod
    async def at(cls, place: Address) -> "HostileSocket":
        async with asyncio.timeout(BOUND_S):
            return cls(*await asyncio.open_connection(place.host, place.port))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while chunk := await reader.read(65_536):
                for data in self._frames.feed(chunk):
                    self._hear(data)
                self._news.set()
        except (OSError, RemoteError):
            pass
        finally:
            self.is_over = True
            self._news.set()

    def _hear(self, data: bytes) -> None:
        if not self._is_greeted:
            self._is_greeted = True
            return
        with suppress(RemoteError):
            frame = (decode_link if self.is_link else decode_client)(data)
            self._alive += isinstance(frame, Alive)
            self.memory.hears(frame)

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        if not self.is_over and not self._writer.transport.is_closing():
            self._writer.write(data)

    def greet(self, name: str, *, is_link: bool = False) -> None:
        """Say who it is, as a client or as a broker."""
        self.is_link = is_link
        self.memory.name = name
        life = time.time_ns() if is_link else 0
        kind = Greeting(
            kind="link" if is_link else "client",
            network="fuzzed",
            revision=1 if is_link else 0,
            name=name,
            frame_bytes_max=FRAME_BYTES_MAX,
            life=life,
        )
        self.send(framed(encode_greeting(kind)))
        if is_link:
            self.send(framed(encode_link(Hello(PROTOCOL_VERSION, name, life))))
        else:
            self.send(framed(encode_client(Connect(PROTOCOL_VERSION, name))))

    def say(self, frames: Sequence[msgspec.Struct], journal: deque[str]) -> list[bytes]:
        """Send frames, and write them down; what was sent."""
        self.memory.learns("time_ns", time.time_ns())
        encode: Any = encode_link if self.is_link else encode_client
        resolved = said(frames, self.memory)
        journal.extend(repr(each)[:500] for each in resolved)
        made = [framed(encode(each)) for each in resolved]
        for data in made:
            self.send(data)
        return made

    def say_large(self, frame: AnyClientFrame, journal: deque[str], what: str) -> None:
        """Send a frame that is too large to be written down but for its name."""
        journal.append(what)
        self.send(framed(encode_client(frame)))

    async def answered(self) -> None:
        """Wait until the broker has dealt with all that a client said, or has cut it off."""
        asked = self._alive
        self.send(framed(encode_client(Alive())))
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                while self._alive == asked and not self.is_over:
                    self._news.clear()
                    await self._news.wait()

    async def heard(self) -> None:
        """Wait until something came, or it is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._news.wait()

    def pause(self) -> None:
        """Read nothing any more."""
        self._task.cancel()

    async def close(self, *, is_rude: bool = False) -> None:
        """End the connection."""
        self._task.cancel()
        if is_rude:
            self._writer.transport.abort()
        else:
            self._writer.close()
        with suppress(OSError, asyncio.CancelledError):
            await self._task
        with suppress(OSError):
            await self._writer.wait_closed()


class FuzzedBrokers:
    """Processes that examples share. See the top of this module."""

    def __init__(self, folder: Path, *, has_honest: bool) -> None:
        self._folder = folder
        self._has_honest = has_honest
        self._loop = asyncio.new_event_loop()
        self._count = 0
        self.is_spoilt = True
        self.brokers: Brokers | None = None
        self._honest: Honest | None = None
        self._idle: dict[str, int] = {}
        #: What was sent last, of whichever example: a failure may come of an earlier one.
        self.journal: deque[str] = deque(maxlen=JOURNAL_MAX)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do something to its end."""
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        """End the processes, if they live as they should."""
        try:
            if not self.is_spoilt:
                self.run(self._end())
        finally:
            self._discard()
            self._loop.close()

    async def _end(self) -> None:
        brokers = self._running()
        if self._honest is not None:
            await self._honest.close()
        codes = [brokers[name].end() for name in NAMES]
        assert codes == [0, 0], codes
        # What they leave on disk must serve the next ones.
        brokers.start(*NAMES)
        codes = [brokers[name].end() for name in NAMES]
        assert codes == [0, 0], codes

    def _discard(self) -> None:
        if self.brokers is not None:
            self.brokers.__exit__(None, None, None)
            self.brokers = None
        self._honest = None
        # Honest clients would look for their brokers for ever.
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self.run(asyncio.wait(left) if left else asyncio.sleep(0))

    def _running(self) -> Brokers:
        assert self.brokers is not None
        return self.brokers

    def ready(self) -> None:
        """Make sure that there are processes that no example has spoilt."""
        if not self.is_spoilt:
            return
        self._discard()
        self._count += 1
        folder = self._folder / f"run-{self._count}"
        folder.mkdir(parents=True)
        # Hypothesis seeds the generator that ports are chosen with; runs side by side would choose
        # the same ones.
        drawn = random.getstate()
        random.seed()
        try:
            self.brokers = Brokers(folder, NETWORK)
        finally:
            random.setstate(drawn)
        self.brokers.start(*NAMES)
        self.journal.clear()
        self.run(self._begin())
        self.is_spoilt = False

    async def _begin(self) -> None:
        brokers = self._running()
        if self._has_honest:
            addresses = brokers.address("B1"), brokers.address("B2")
            self._honest = await Honest.at(*addresses, "honest")
        self._idle = {name: (await self._status(name))["resident_bytes"] for name in NAMES}

    def place(self, name: str, port: str) -> Address:
        """Where a broker listens."""
        return self._running()[name].places[port]

    async def _status(self, name: str) -> dict[str, Any]:
        place = self.place(name, "observe")
        answer = await ask(place.host, place.port, "/status", within_s=BOUND_S)
        decoded: dict[str, Any] = {} if answer is None else msgspec.json.decode(answer[1])
        if decoded.get("state") != "ready":
            # It ends, or it hangs.
            process = self._running()[name].process
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, BOUND_S)
            code = process.poll()
            what = "does not answer" if code is None else f"has ended with {code}"
            raise AssertionError(f"{name} {what}: {self._last_words(name)}{self._sent_last()}")
        return decoded

    def _sent_last(self) -> str:
        sent = "\n".join(self.journal)
        return f"\nsent last:\n{sent}"

    def _last_words(self, name: str) -> str:
        return self._running()[name].said()[-2_000:]

    async def settled(self) -> None:
        """Wait until the disks owe nothing, so that what a step caused has happened: no broker has
        ended of it."""
        for name in NAMES:
            await until_asked(partial(self._owes_nothing, name), f"the disk of {name} is done")

    async def _owes_nothing(self, name: str) -> bool:
        return not (await self._status(name))["syncs"]

    async def check(self) -> None:
        """Everything that must hold at any time."""
        for name in NAMES:
            assert INTERNAL_ERROR not in self._running()[name].said(), self._last_words(name)
            place = self.place(name, "observe")
            health = await ask(place.host, place.port, "/health", within_s=BOUND_S)
            assert health is not None, f"{name} does not say how it is"
            assert health[0] == 200, f"{name} is not well: {health}"
            metrics = await ask(place.host, place.port, "/metrics", within_s=BOUND_S)
            assert metrics is not None, f"{name} tells no metrics"
            assert metrics[0] == 200, f"{name} tells no metrics: {metrics}"
            status = await self._status(name)
            # At its peak: what one frame takes may be free again.
            grown = memory_of(status["pid"], "VmHWM") - self._idle[name]
            assert grown <= BUDGET_BYTES, f"{name} has grown by {grown} bytes{self._sent_last()}"
            held = status["resident_bytes"] - self._idle[name]
            assert IS_SOAK or held <= HELD_BYTES_MAX, f"{name} holds {held} bytes more than idle"
            # Of the processor's time: a busy machine makes every step last longer.
            longest_s = status.get("longest_step_cpu_s", 0.0)
            was = f"{name}: a step ({status['longest_step_was']}) took {longest_s} s"
            assert not IS_SOAK or longest_s <= STEP_S_MAX, was + self._sent_last()

    async def honest_goes_on(self) -> None:
        """The honest pair is served."""
        if self._honest is not None:
            await self._honest.goes_on("honest", 5)

    def kill(self, name: str) -> None:
        """End a broker at this moment, and start it again: it must come back."""
        brokers = self._running()
        brokers[name].end(signal.SIGKILL)
        brokers.start(name)
