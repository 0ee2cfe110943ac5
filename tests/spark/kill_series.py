"""Kill −9, again and again, while a query copies two streams into a third: every row once.

    python -m tests.spark.kill_series --seed 3 --rows 150000 --json

Killed are the driver, at any moment and exactly between the commit at the broker and Spark's own;
Python workers; executors, on a small cluster; and the broker that is written to. What dies is
started again, from the checkpoint. In the end the third stream is compared with the others, row by
row. Exit code 1 if a row is missing, twice or out of order.
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

import anabranch
from tests.broker_parts import Brokers
from tests.spark.copying import Copy
from tests.spark_parts import Driver, compared, events_of, publish_numbered

Victim = Literal["driver", "between commits", "worker", "executor", "broker"]

NETWORK = """
[network]
name = "copying"
[tree]
c = ["a", "b"]
[options]
keep_s = 86_400.0
"""
BATCHES = 60
BOUND_S = 900.0
#: Who is killed in each life of the driver, one after the other; the last one ends it. After these
#: lives it is left in peace.
LIVES: tuple[tuple[Victim, ...], ...] = (
    ("worker", "broker", "driver"),
    ("between commits",),
    ("executor", "broker", "executor", "driver"),
    ("broker", "between commits"),
    ("worker", "driver"),
    ("between commits",),
    ("broker", "worker", "driver"),
)
_encoder = msgspec.json.Encoder(order="deterministic")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a series came to."""

    seed: int
    rows: int
    kills: int
    #: How often a driver was started.
    lives: int
    missing: int
    duplicate: int
    reordered: int
    #: Victim → kills.
    killed: dict[str, int]


class Series:
    """One copy, and what happens to it."""

    def __init__(self, folder: Path, brokers: Brokers, rows: int, chance: Random) -> None:
        self._folder = folder
        self._brokers = brokers
        self._chance = chance
        self._checkpoint = folder / "checkpoint"
        self.killed: Counter[str] = Counter()
        self.lives = 0
        self._copy = Copy(
            brokers=",".join(map(brokers.address, "abc")),
            sources="a,b",
            target="c",
            sink="copy",
            checkpoint=str(self._checkpoint),
            batch_ticks=rows // BATCHES,
            partitions=4,
        )

    def live(self, victims: tuple[Victim, ...]) -> bool:
        """One life of the driver; whether all was copied."""
        copy = self._copy
        if "executor" in victims:
            copy = msgspec.structs.replace(copy, master="local-cluster[2,1,1024]")
        if victims and victims[-1] == "between commits":
            # After the strikes before it, and not in the batch that may be done again.
            batch = self._newest() + 1 + len(victims)
            copy = msgspec.structs.replace(copy, dies_after=batch)
        self.lives += 1
        log = self._folder / f"driver-{self.lives}.log"
        with Driver(log, "tests.spark.copying", _encoder.encode(copy).decode()) as driver:
            for victim in victims:
                if not self._strike(driver, victim):
                    break
            if victims and victims[-1] == "driver" and driver.runs:
                driver.kill()
            code = driver.wait(BOUND_S)
        newest = self._newest()
        if newest >= copy.dies_after >= 0 and not (self._checkpoint / f"commits/{newest}").exists():
            self.killed["between commits"] += 1
        return code == 0

    def _strike(self, driver: Driver, victim: Victim) -> bool:
        """Kill somebody when the copy has gone on for a while; whether the driver still runs."""
        if victim == "between commits":
            return True
        if not self._has_gone_on(driver):
            return False
        time.sleep(self._chance.uniform(0.0, 1.0))
        if victim == "driver":
            driver.kill()
        elif victim == "broker":
            self._brokers["c"].end(signal.SIGKILL)
            self._brokers.start("c")
        else:
            mark = "pyspark.daemon" if victim == "worker" else "CoarseGrainedExecutorBackend"
            found = [each for each, line in driver.descendants().items() if mark in line]
            if not found:
                return driver.runs
            # Of workers this may be the one that starts the others.
            os.kill(self._chance.choice(found), signal.SIGKILL)
        self.killed[victim] += 1
        return driver.runs

    def _has_gone_on(self, driver: Driver) -> bool:
        """Wait until a batch more is begun; false if the driver ends before."""
        begun, deadline = self._newest(), time.monotonic() + BOUND_S
        while self._newest() <= begun:
            if not driver.runs:
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"no batch after {begun}: {driver.said()[-3_000:]}")
            time.sleep(0.05)
        return True

    def _newest(self) -> int:
        """The newest batch that Spark has begun; −1 if there is none."""
        found = (self._checkpoint / "offsets").glob("[0-9]*")
        return max((int(each.name) for each in found), default=-1)


def kill_series(folder: Path, *, seed: int, rows: int) -> Outcome:
    """Copy so many rows, killing everybody in turn."""
    chance = Random(seed)
    counts = {"a": rows // 2, "b": rows - rows // 2}
    with Brokers(folder, NETWORK) as brokers:
        brokers.start("a", "b", "c")
        feeds = [
            threading.Thread(target=publish_numbered, args=(brokers.address(name), name, count))
            for name, count in counts.items()
        ]
        for feed in feeds:
            feed.start()
        for feed in feeds:
            feed.join()
        series = Series(folder, brokers, rows, chance)
        lives = [*LIVES]
        chance.shuffle(lives)
        for victims in lives:
            series.live(victims)
        while not series.live(()):
            if series.lives > 3 * len(LIVES):
                raise TimeoutError(f"the copy does not end; see {folder}")
        address = brokers.address("c")
        with anabranch.Fetcher(address) as fetcher:
            assert fetcher.describe().broker == "c"
        found = compared(events_of(address, "c", "sink/copy"), counts)
    return Outcome(
        seed=seed,
        rows=found.rows,
        kills=series.killed.total(),
        lives=series.lives,
        missing=found.missing,
        duplicate=found.duplicate,
        reordered=found.reordered,
        killed=dict(series.killed),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=150_000)
    parser.add_argument("--keep", type=Path, help="keep everything in this directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anabranch-spark-kills-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = kill_series(folder, seed=options.seed, rows=options.rows)
    document = _encoder.encode(outcome).decode()
    if not options.json:
        document = (
            f"{outcome.rows:,} rows, {outcome.kills} kills ({outcome.killed}),"
            f" {outcome.lives} drivers: {outcome.missing} missing, {outcome.duplicate} duplicate,"
            f" {outcome.reordered} reordered"
        )
    sys.stdout.write(document + "\n")
    is_whole = outcome.rows == options.rows
    return 0 if is_whole and not outcome.missing + outcome.duplicate + outcome.reordered else 1


if __name__ == "__main__":
    sys.exit(main())
