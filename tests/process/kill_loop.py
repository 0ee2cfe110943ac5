"""Kill −9, again and again: any broker, at any instant, while applications go on.

    python -m tests.process.kill_loop --seed 3 --kills 10 --events 40000 --json [--routing mesh]

Two publishers, of which one advertises, and five subscribers, durable and not, use a network of
seven brokers: two sites of relays, or a mesh. At moments that the seed chooses, one broker or two
are killed and stay away for a while that the seed chooses; an edge among them makes its clients
roam. The moments are spread over all of the publishing: of so many kills each has its share of the
events, and falls somewhere into it. In the end everything is back, everything arrives, and the
checker judges. Exit code 1 if a promise was broken, or something did not arrive.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from random import Random

import msgspec

from anabranch.devnet.drill import Trial
from anabranch.devnet.verdict import RunVerdict
from tests.process_parts import BRISK, DOUBLE, SETTLE_BOUND_S, drilling, published

#: The same edges round four relays that are joined in a ring, and two of the edges to each other.
MESH = """
[network]
name = "ring"
[mesh]
links = [
    ["w1", "w2"], ["w2", "x2"], ["x2", "x1"], ["x1", "w1"],
    ["e1", "w1"], ["e1", "w2"], ["e2", "w2"], ["e2", "x2"], ["e3", "x1"], ["e3", "x2"],
    ["e1", "e2"],
]
relays = ["w1", "w2", "x1", "x2"]
"""
NETWORKS = {"tree": DOUBLE, "mesh": MESH}
_encoder = msgspec.json.Encoder(order="deterministic")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a loop came to."""

    seed: int
    kills: int
    published: int
    #: Of these, those that were published when the last broker that was killed was back.
    undisturbed: int
    confirmed: int
    delivered: int
    anomalies: int
    #: What did not arrive, for people.
    missing: str
    named: dict[str, int]


class Strike(msgspec.Struct, frozen=True):
    """So many brokers are killed when so many events were published."""

    events: int
    victims: int


def strikes(chance: Random, kills: int, events: int) -> list[Strike]:
    """When to kill, so that the kills are spread over all events."""
    found: list[Strike] = []
    killed = 0
    while killed < kills:
        victims = min(chance.choice((1, 1, 2)), kills - killed)
        place = killed + victims * chance.uniform(0.1, 0.9)
        found.append(Strike(int(place * events / kills), victims))
        killed += victims
    return found


async def populate(drill: Trial, rate: float) -> None:
    """Everybody has a home and somewhere to go."""
    await drill.add_subscriber("acme", "symbol = 'ACME'", "e3", "e1", durable=True, options=BRISK)
    await drill.add_subscriber("cheap", "price < 60", "e2", "e3", durable=True, options=BRISK)
    await drill.add_subscriber(
        "moves", "change > 1 OR change < -1", "e1", durable=True, options=BRISK
    )
    await drill.add_subscriber("large", "volume > 70000", "e3", "e2", options=BRISK)
    await drill.add_subscriber(
        "london", "exchange = 'LON' AND price > 20", "e2", "e1", options=BRISK
    )
    promises = ("exchange = 'LON' OR exchange = 'NYC'", "price < 100")
    await drill.add_publisher("west", "e1", "e2", rate=rate / 2, advertised=promises, options=BRISK)
    await drill.add_publisher("east", "e3", "e2", rate=rate / 2, options=BRISK)


async def kill_loop(
    folder: Path,
    *,
    seed: int,
    kills: int,
    events: int,
    rate: float = 600.0,
    text: str = DOUBLE,
) -> tuple[Outcome, RunVerdict]:
    """Kill so many brokers while at least so many events are published."""
    chance = Random(seed)
    async with drilling(folder, text, seed=1_000 * seed) as drill:
        await populate(drill, rate)
        for strike in strikes(chance, kills, events):
            await _until_published(drill, strike.events)
            victims = chance.sample(drill.network.brokers, strike.victims)
            await drill.network.kill(*victims)
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            await drill.network.revive(*victims)
        drill.healed()
        disturbed = _so_far(drill)
        await _until_published(drill, events)
        missing = await drill.settle(SETTLE_BOUND_S + events / 2_000)
        verdict = await drill.verdict()
        return _outcome(seed, kills, disturbed, missing, verdict), verdict


def _so_far(drill: Trial) -> int:
    return sum(speaker.published for speaker in drill.publishers.values())


async def _until_published(drill: Trial, events: int) -> None:
    """Wait for so many events in all, and read the logs before they may forget."""
    while (missing := events - _so_far(drill)) > 0:
        await published(drill, min(missing, 5_000))
        drill.follow_logs()


def _outcome(seed: int, kills: int, disturbed: int, missing: str, verdict: RunVerdict) -> Outcome:
    return Outcome(
        seed=seed,
        kills=kills,
        published=verdict.published,
        undisturbed=verdict.published - disturbed,
        confirmed=verdict.confirmed,
        delivered=verdict.delivered,
        anomalies=sum(verdict.anomalies.values()),
        missing=missing,
        named=verdict.anomalies,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--rate", type=float, default=600.0)
    parser.add_argument("--routing", choices=list(NETWORKS), default="tree")
    parser.add_argument("--options", default="", help="lines for [options] of the network file")
    parser.add_argument("--keep", type=Path, help="keep everything in this directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anabranch-kills-") as folder:
        loop = kill_loop(
            options.keep or Path(folder),
            seed=options.seed,
            kills=options.kills,
            events=options.events,
            rate=options.rate,
            text=f"{NETWORKS[options.routing]}\n[options]\n{options.options}\n",
        )
        outcome, verdict = asyncio.run(loop)
    document = _encoder.encode(outcome if options.json else verdict).decode()
    sys.stdout.write(document + "\n")
    return 1 if outcome.anomalies or outcome.missing else 0


if __name__ == "__main__":
    sys.exit(main())
