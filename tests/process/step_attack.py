"""Work that a client asks for at once, and how long brokers fall silent over it.

    python -m tests.process.step_attack --attack filters --attack texts --json [--routing mesh]

Two brokers with one link between them. An honest publisher at one and an honest subscriber at the
other exchange one event after the other. A client of the first broker attacks: it asks for as much
as limits allow, all at once. Printed for each attack: the longest step of either broker, by
processor time and by the clock, and what it was; the longest silence on the link, by a tap that
hears both directions; the longest wait of the honest publisher for a confirmation; and how often
the link came up. With `--bound` the exit code is 1 if a step took more processor time than a tenth
of `dead_after_s`, if the link was silent for `dead_after_s` or came up twice, or if an honest event
did not arrive. Every attack has a network of its own.
"""

import argparse
import asyncio
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path

import msgspec

from anabranch.client.client import connect
from anabranch.client.subscription import Subscription
from anabranch.core.options import Options
from anabranch.devnet.network import LocalNetwork, settled
from anabranch.model.client_frames import (
    ADVERTISED_CHARACTERS_MAX,
    Ack,
    Advertises,
    AnyClientFrame,
    Connect,
    Define,
    Deliver,
    Discard,
    Publish,
    Stage,
    Subscribe,
    Unsubscribe,
)
from anabranch.model.encoding import encode_draft, encode_event
from anabranch.model.event import Event, EventId, Value
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.wire.codec import decode_client, encode_client
from anabranch.wire.framing import LENGTH_BYTES, framed
from anabranch.wire.greeting import Greeting, encode_greeting
from tests.process_parts import BRISK, network_file, proxied, status, until

TREE = """
[network]
name = "pair"
[tree]
B1 = ["B2"]
"""
MESH = """
[network]
name = "pair"
[mesh]
links = [["B1", "B2"]]
"""
NETWORKS = {"tree": TREE, "mesh": MESH}
#: Nothing that a broker does about an attack takes longer.
ATTACK_BOUND_S = 600.0
FRAME_BYTES_MAX = 16 * 2**20
_encoder = msgspec.json.Encoder(order="deterministic")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one attack did."""

    attack: str
    routing: str
    #: Until the attacker had all its answers.
    took_s: float
    longest_step_cpu_s: float
    longest_step_s: float
    longest_step_was: str
    longest_silence_s: float
    confirm_s_max: float
    honest: int
    missing: int
    times_up: int


class Tap:
    """Carries the bytes of one link in threads of its own, and notes the longest silence: how long
    it was ready to read, and nothing came. While the receiver takes nothing, the tap reads nothing,
    and no sender is to blame."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.is_noting = False
        self.longest_s = 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                # The target does not listen yet; the broker dials again.
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        heard_at = time.monotonic()
        try:
            while data := source.recv(1 << 18):
                now = time.monotonic()
                if self.is_noting:
                    self.longest_s = max(self.longest_s, now - heard_at)
                target.sendall(data)
                heard_at = time.monotonic()
        except OSError:
            pass
        for plug in (source, target):
            plug.close()

    def close(self) -> None:
        self._listener.close()


class Attacker:
    """A client that sends whatever frames it likes, and counts what comes back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.answers: Counter[str] = Counter()
        self._sequence = 0
        self._task = asyncio.ensure_future(self._read())

    @classmethod
    async def at(cls, address: str, name: str = "attacker") -> "Attacker":
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        hello = Greeting(kind="client", name=name, network="pair", frame_bytes_max=FRAME_BYTES_MAX)
        writer.write(framed(encode_greeting(hello)))
        size = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
        await reader.readexactly(size)
        attacker = cls(reader, writer)
        attacker.send(Connect(PROTOCOL_VERSION, name))
        return attacker

    async def _read(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
                frame = decode_client(await self._reader.readexactly(size))
                self.answers[type(frame).__name__] += 1
                self.answers[f"last {type(frame).__name__}"] = getattr(frame, "sequence", 0)
                if isinstance(frame, Deliver):
                    self.answers["events"] += sum(len(each.data) for each in frame.matches)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.answers["end"] += 1

    def send(self, *frames: AnyClientFrame) -> None:
        self._writer.write(b"".join(framed(encode_client(frame)) for frame in frames))

    def bodies(self, events: Iterable[Mapping[str, Value]]) -> list[bytes]:
        made = []
        for attributes in events:
            self._sequence += 1
            event_id = EventId("attacker", 1, self._sequence)
            made.append(encode_event(Event(attributes).stamped(event_id, time.time_ns())))
        return made

    async def until(self, answer: str, count: int = 1) -> None:
        """Wait until so many frames of a kind have come, or the last has this sequence.

        A subscription that a quota refuses is answered, too."""
        kinds = ("Subscribed", "Refused") if answer == "Subscribed" else (answer,)
        await until(
            lambda: sum(self.answers[kind] for kind in kinds) >= count or self.answers["end"] > 0,
            f"{count} times {answer}",
            ATTACK_BOUND_S,
        )

    async def close(self) -> None:
        self._writer.close()
        await self._task


def conjunctions(number: int, seed: int) -> str:
    """A filter of so many conjunctions over several attributes."""
    parts = (
        f"(a{i % 16} = {seed * 100_000 + i} AND b{i % 7} > {i + seed} AND c{i % 5} < {i * 3})"
        for i in range(number)
    )
    return " OR ".join(parts)


def unlike(number: int, seed: int) -> str:
    """A filter of so many conjunctions of LIKE, which no kernel compares."""
    parts = (f"(t LIKE '%a{i}_%b{seed}%' AND u LIKE '%x{i}%')" for i in range(number))
    return " OR ".join(parts)


#: Conjunctions of `unlike` that a filter may have.
_UNLIKE_MAX = DEFAULT_LIMITS.search_weight_max // 4


def reliable(number: int, text: str, start: str = "now") -> Subscribe:
    return Subscribe(number, f"s{number}", text, "reliable", start)  # type: ignore[arg-type]


async def filters(attacker: Attacker, scale: float) -> None:
    """40 filters of 1,000 conjunctions."""
    count = max(1, int(40 * scale))
    attacker.send(*(reliable(n, conjunctions(1_000, n)) for n in range(1, count + 1)))
    await attacker.until("Subscribed", count)


async def likes(attacker: Attacker, scale: float) -> None:
    """160 filters of as many conjunctions of LIKE as fit, which no kernel compares."""
    count = max(1, int(160 * scale))
    for n in range(1, count + 1):
        attacker.send(reliable(n, unlike(_UNLIKE_MAX, n)))
    await attacker.until("Subscribed", count)


async def ranges(attacker: Attacker, scale: float) -> None:
    """40 filters of 1,000 boxes that overlap."""
    count = max(1, int(40 * scale))
    for n in range(1, count + 1):
        parts = (
            f"(a BETWEEN {i} AND {i + 9 + n} AND b BETWEEN {1_000 - i} AND {1_011 - i} AND c = {n})"
            for i in range(1_000)
        )
        attacker.send(reliable(n, " OR ".join(parts)))
    await attacker.until("Subscribed", count)


async def terms(attacker: Attacker, scale: float) -> None:
    """Filters of as many attributes as fit."""
    count = max(1, int(8 * scale))
    for n in range(1, count + 1):
        attacker.send(reliable(n, " AND ".join(f"t{n}x{i} > {i}" for i in range(14_000))))
    await attacker.until("Subscribed", count)


async def texts(attacker: Attacker, scale: float) -> None:
    """10,000 filters of LIKE and arithmetic, and 100 events of 60 kB."""
    count = max(100, int(10_000 * scale))
    frames = []
    for n in range(1, count + 1):
        text = (
            f"text LIKE '%a{n}_b%c%'" if n % 2 else f"x * {n} + y > z - {n} AND text LIKE '%q{n}_%'"
        )
        frames.append(reliable(n, text))
    attacker.send(*frames)
    await attacker.until("Subscribed", count)
    large = "lorem ipsum " * 5_000
    events: list[dict[str, Value]] = [
        {"text": f"{n}{large}", "x": n, "y": 1, "z": 2} for n in range(100)
    ]
    attacker.send(*(Publish([body]) for body in attacker.bodies(events)))
    await attacker.until("last Confirmed", 100)


async def publishes(attacker: Attacker, scale: float) -> None:
    """Publish frames of 16 MiB, and of as many events as fit."""
    many = max(1_000, int(65_000 * scale))
    attacker.send(Publish(attacker.bodies({"n": n} for n in range(many))))
    attacker.send(Publish(attacker.bodies({"t": "x" * 60_000, "n": n} for n in range(270))))
    await attacker.until("Confirmed")


async def _crowd(attacker: Attacker, scale: float, form: str = "k = {n} AND p < {rest}") -> int:
    """As many subscriptions as a client may have, of 65,000; how many there are."""
    answers, count, sent = attacker.answers, max(1_000, int(65_000 * scale)), 0

    def is_answered() -> bool:
        return answers["Subscribed"] + answers["Refused"] >= sent or answers["end"] > 0

    while sent < count and not answers["Refused"] and not answers["end"]:
        numbers = range(sent + 1, min(sent + 1_000, count) + 1)
        attacker.send(*(reliable(n, form.format(n=n, rest=n % 97)) for n in numbers))
        sent += len(numbers)
        await until(is_answered, "every subscription stands or is refused", ATTACK_BOUND_S)
    return answers["Subscribed"]


async def leaving(attacker: Attacker, scale: float) -> None:
    """A session with 65,000 subscriptions ends."""
    await _crowd(attacker, scale)
    await attacker.close()
    await asyncio.sleep(5.0)


async def unsubscribing(attacker: Attacker, scale: float) -> None:
    """65,000 subscriptions end one by one, all asked for at once."""
    count = await _crowd(attacker, scale)
    attacker.send(*(Unsubscribe(n, f"s{n}") for n in range(1, count + 1)))
    await attacker.until("Unsubscribed", count)


async def acks(attacker: Attacker, scale: float) -> None:
    """Acks of 65,000 subscriptions, on two streams and on very many."""
    count = await _crowd(attacker, scale)
    ticks = {f"s{n}": 0 for n in range(1, count + 1)}
    attacker.send(*(Ack({stream: ticks}) for stream in ("B1", "B2") * 10))
    attacker.send(Ack({"B2": {}} | {f"o{n}": {"s1": 0} for n in range(min(count, 60_000))}))
    attacker.send(Unsubscribe(1, "s1"))
    await attacker.until("Unsubscribed")


async def fanout(attacker: Attacker, scale: float) -> None:
    """65,000 subscriptions that want everything, and 20 events."""
    count = await _crowd(attacker, scale, "m >= {rest}")
    attacker.send(Publish(attacker.bodies({"m": 100 + n} for n in range(20))))
    # A subscription gets all of them, or is cut because its client reads too slowly.
    answers = attacker.answers
    await until(
        lambda: answers["events"] + 20 * answers["Cut"] >= 20 * count or answers["end"] > 0,
        "every subscription served or cut",
        ATTACK_BOUND_S,
    )


async def replays(attacker: Attacker, scale: float) -> None:
    """Many subscriptions from the beginning of a log of large events."""
    large = "lorem ipsum " * 2_000
    events: list[dict[str, Value]] = [{"text": f"{n}{large}", "n": n} for n in range(2_000)]
    for body in attacker.bodies(events):
        attacker.send(Publish([body]))
        await asyncio.sleep(0)
    await attacker.until("last Confirmed", 1_000)
    count = max(50, int(1_000 * scale))
    made = (reliable(n, f"text LIKE '%z{n}_%'", "beginning") for n in range(1, count + 1))
    attacker.send(*made)
    await attacker.until("Subscribed", count)
    await asyncio.sleep(5.0)


def searches_of(number: int, seed: int, joint: str, attributes: int = 8) -> str:
    """Conditions of LIKE that take longest to decide: stretches full of holes, in large texts."""
    made = []
    for i in range(number):
        stretch = "".join("_" if (i * 131 + seed * 17 + p * p) % 3 else "a" for p in range(254))
        made.append(f"t{i % attributes} LIKE '%{stretch}b%'")
    return joint.join(made)


#: Of such conditions, how many a filter may have.
_SEARCHES_MAX = DEFAULT_LIMITS.search_weight_max // (1 + 255 // 4)


async def searches(attacker: Attacker, scale: float) -> None:
    """Filters of the most expensive LIKEs that limits allow, over texts as large as may be: live,
    from the beginning, as advertisements and in patterns."""
    count = max(2, int(40 * scale))
    # The texts match at their ends, so that every condition of an AND is evaluated.
    events: list[dict[str, Value]] = [
        {f"t{i}": "a" * 65_000 + "b" for i in range(8)} | {"n": n}
        for n in range(max(2, count // 2))
    ]
    filters = [searches_of(_SEARCHES_MAX, n, " AND " if n % 2 else " OR ") for n in range(count)]
    attacker.send(*(reliable(n, text) for n, text in enumerate(filters, 1)))
    await attacker.until("Subscribed", count)
    bodies = attacker.bodies(events)
    attacker.send(*(Publish([body]) for body in bodies))
    await attacker.until("last Confirmed", len(bodies))
    late = enumerate(filters, count + 1)
    attacker.send(*(reliable(n, text, "beginning") for n, text in late))
    await attacker.until("Subscribed", 2 * count)
    parts = " THEN ".join(f"p{n}:{{{searches_of(2, n, ' AND ')}}}" for n in range(4))
    attacker.send(Define(1, "searched", f"{parts} WITHIN 10 s", is_new=True))
    few = [text for text in filters[:4] if len(text) < ADVERTISED_CHARACTERS_MAX // 4]
    attacker.send(Advertises(few))
    bodies = attacker.bodies(events[:4])
    attacker.send(*(Publish([body]) for body in bodies))
    await asyncio.sleep(10.0)


async def advertises(attacker: Attacker, scale: float) -> None:
    """As much as a session may advertise, in several ways, and as many events held against it."""
    large = "lorem ipsum " * 2_000
    events: dict[str, dict[str, Value]] = {
        "tiny": {"a0": 100_000, "b0": 10, "c0": -1},
        "wide": {f"w{n}": 1_000_000 for n in range(200)},
        "large": {"t": large, "u": large},
    }
    makers: tuple[tuple[int, Callable[[int], str]], ...] = (
        (1_000, lambda n: conjunctions(5, n)),
        (30, lambda n: conjunctions(200, n)),
        (30, lambda n: " OR ".join(f"w{i}<{n}" for i in range(1_000))),
        (60, lambda n: unlike(99, n)),
        (40, lambda n: unlike(_UNLIKE_MAX, n)),
    )
    for number, (count, make) in enumerate(makers, 1):
        texts = [make(n) for n in range(max(5, int(count * scale)))]
        while sum(map(len, texts)) > ADVERTISED_CHARACTERS_MAX:
            texts.pop()
        attacker.send(Advertises(texts))
        for attributes in events.values():
            attacker.send(Publish(attacker.bodies([attributes])))
            attacker.send(Publish(attacker.bodies([attributes] * max(60, int(256 * scale)))))
        # It is refused when all before it is done.
        attacker.send(Define(number, "none", "no pattern"))
        await attacker.until("Refused", number)


async def defines(attacker: Attacker, scale: float) -> None:
    """Patterns as long as they may be, some of which are refused, one of them after very long."""

    def pattern(parts: int, each: int, key: int) -> str:
        made = (
            " OR ".join(f"(x{key}_{p} = {i} AND y{p} > {i})" for i in range(each))
            for p in range(parts)
        )
        return " THEN ".join(f"p{p}:{{{text}}}" for p, text in enumerate(made)) + " WITHIN 10 s"

    count = max(1, int(8 * scale))
    for n in range(count):
        attacker.send(
            # Too large for a subscription, which shows in the end; then as large as may be: known
            # to be new, and looked for at the other broker.
            Define(4 * n + 1, f"refused{n}", pattern(16, 430, n), is_new=True),
            Define(4 * n + 2, f"new{n}", pattern(20, 51, n), is_new=True),
            Define(4 * n + 3, f"found{n}", pattern(4, 250, n)),
            Define(4 * n + 4, f"garbage{n}", pattern(16, 430, n) + " x", is_new=True),
        )
    answers = attacker.answers
    await until(
        lambda: answers["Defined"] + answers["Refused"] >= 4 * count or answers["end"] > 0,
        "every pattern is defined or refused",
        ATTACK_BOUND_S,
    )
    # They are detected, and move nowhere.
    await asyncio.sleep(5.0)


async def stages(attacker: Attacker, scale: float) -> None:
    """Many tokens, discarded at once."""
    count = max(1_000, int(16_000 * scale))
    attacker.send(*(Stage(n, f"t{n}", 0, [], True) for n in range(1, count + 1)))
    answers = attacker.answers
    await until(
        lambda: answers["Staged"] + answers["Refused"] >= count or answers["end"] > 0,
        "every chunk is staged or refused",
        ATTACK_BOUND_S,
    )
    attacker.send(Discard(tuple(f"t{n}" for n in range(1, count + 1))))
    await asyncio.sleep(1.0)


async def drafts(attacker: Attacker, scale: float) -> None:
    """Chunks of as many events as fit into a frame: tiny ones, and ones of many attributes."""
    tiny = encode_draft(Event({"n": 1}))
    wide = encode_draft(Event({f"a{n}": n for n in range(200)}))
    for number in range(max(1, int(3 * scale))):
        attacker.send(Stage(2 * number + 1, f"tiny{number}", 0, [tiny] * 65_535))
        count = FRAME_BYTES_MAX // (len(wide) + 3) - 1
        attacker.send(Stage(2 * number + 2, f"wide{number}", 0, [wide] * count))
        await attacker.until("Staged", 2 * number + 2)


ATTACKS: dict[str, Callable[[Attacker, float], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        filters,
        texts,
        likes,
        ranges,
        terms,
        publishes,
        leaving,
        unsubscribing,
        acks,
        fanout,
        replays,
        searches,
        advertises,
        stages,
        drafts,
        defines,
    )
}


class _Honest:
    """Publishes at one broker and hears it at the other, one event after the other."""

    def __init__(self) -> None:
        self.confirm_s: list[float] = []
        self.received = 0

    async def run(self, network: LocalNetwork, begun: asyncio.Event, over: asyncio.Event) -> None:
        async with (
            await connect(network.address("B1"), name="honest-p", options=BRISK) as publisher,
            await connect(network.address("B2"), name="honest-s", options=BRISK) as subscriber,
        ):
            found = await subscriber.subscribe("who = 'honest'")
            await found.wait_started("B1")
            reading = asyncio.ensure_future(self._read(found))
            begun.set()
            while not over.is_set():
                began = time.monotonic()
                await publisher.publish({"who": "honest", "n": len(self.confirm_s)})
                self.confirm_s.append(time.monotonic() - began)
                await asyncio.sleep(0.02)
            with suppress(AssertionError):  # what is missing is counted
                await until(
                    lambda: self.received >= len(self.confirm_s), "honest events", ATTACK_BOUND_S
                )
            reading.cancel()

    async def _read(self, found: Subscription) -> None:
        async for received in found:
            assert received["n"] == self.received, "out of order"
            self.received += 1


async def attacked(
    folder: Path, attack: str, routing: str, scale: float, options: str = ""
) -> Outcome:
    """One attack on a network of its own, with these lines in `[options]` of its file."""
    text = f"{NETWORKS[routing]}\n[options]\n{options}\n"
    brokers = settled(network_file(text), folder).brokers
    honest, begun, over = _Honest(), asyncio.Event(), asyncio.Event()
    async with AsyncExitStack() as stack:
        tap = stack.enter_context(closing(Tap(brokers["B2"].links_port)))
        files = proxied(folder, text, {"B1": {"B2": tap.port}}, brokers)
        network = LocalNetwork(network_file(text), folder, files=files)
        await stack.enter_async_context(network)
        watching = asyncio.ensure_future(honest.run(network, begun, over))
        waiting = asyncio.ensure_future(begun.wait())
        await asyncio.wait({watching, waiting}, return_when="FIRST_COMPLETED")
        attacker = await Attacker.at(network.address("B1"))
        stack.push_async_callback(attacker.close)
        tap.is_noting = True
        began = time.monotonic()
        await ATTACKS[attack](attacker, scale)
        took_s = time.monotonic() - began
        # What the neighbour still has to do about it counts too.
        await asyncio.sleep(2 * Options().dead_after_s)
        over.set()
        await watching
        tap.is_noting = False
        found = [await status(network, broker) for broker in ("B1", "B2")]
    worst = max(found, key=lambda each: each.longest_step_cpu_s)
    return Outcome(
        attack=attack,
        routing=routing,
        took_s=round(took_s, 2),
        longest_step_cpu_s=round(worst.longest_step_cpu_s, 3),
        longest_step_s=round(max(each.longest_step_s for each in found), 3),
        longest_step_was=f"{worst.broker}: {worst.longest_step_was}",
        longest_silence_s=round(tap.longest_s, 3),
        confirm_s_max=round(max(honest.confirm_s), 3),
        honest=len(honest.confirm_s),
        missing=len(honest.confirm_s) - honest.received,
        times_up=max(link.times_up for each in found for link in each.links),
    )


def is_within(outcome: Outcome) -> bool:
    """Whether every promise was kept."""
    options = Options()
    return (
        outcome.longest_step_cpu_s <= options.dead_after_s / 10
        and outcome.longest_silence_s < options.dead_after_s
        and outcome.times_up == 1
        and outcome.honest > 0
        and not outcome.missing
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--attack", action="append", choices=list(ATTACKS), default=[])
    parser.add_argument("--routing", choices=list(NETWORKS), default="tree")
    parser.add_argument("--scale", type=float, default=1.0, help="part of each attack")
    parser.add_argument("--bound", action="store_true", help="fail if a bound does not hold")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    failed = False
    for attack in options.attack or list(ATTACKS):
        with tempfile.TemporaryDirectory(prefix="anabranch-steps-") as folder:
            outcome = asyncio.run(attacked(Path(folder), attack, options.routing, options.scale))
        failed |= options.bound and not is_within(outcome)
        if options.json:
            sys.stdout.write(_encoder.encode(outcome).decode() + "\n")
        else:
            named = msgspec.structs.asdict(outcome)
            sys.stdout.write("  ".join(f"{key} {value}" for key, value in named.items()) + "\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
