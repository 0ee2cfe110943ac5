"""What tests of the pipeline share: networks to write into, drivers to kill, streams to look at."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, DataFrameWriter

import anabranch
from anabranch.model.encoding import decode_event, rows_in
from anabranch.model.event import Event

ROOT = Path(__file__).resolve().parent.parent
#: More than a driver should need to end.
BOUND_S = 300.0
#: Two brokers that forget nothing while a test runs.
PAIR = """
[network]
name = "pair"
[tree]
a = ["b"]
[options]
keep_s = 86_400.0
"""


@contextmanager
def network_of(folder: Path, text: str = PAIR) -> Iterator[anabranch.Embedded]:
    """A network in this process."""
    file = folder / "network.toml"
    file.write_text(text)
    with anabranch.embedded(file) as running:
        yield running


def writing(frame: DataFrame, options: Mapping[str, str]) -> DataFrameWriter:
    """A batch write into a network."""
    return frame.write.format("anabranch").mode("append").options(**options)


# -- queries ---------------------------------------------------------------------------------------


def scanned(frame: DataFrame) -> int:
    """The rows that the brokers returned for a query."""
    frame.collect()
    plans = [frame._jdf.queryExecution().executedPlan()]
    for plan in plans:
        if plan.nodeName().startswith("BatchScan"):
            return int(plan.metrics().get("numOutputRows").get().value())
        plans += [plan.children().apply(n) for n in range(plan.children().size())]
    raise AssertionError("the query has no scan")


# -- streams ---------------------------------------------------------------------------------------


def events_of(address: str, stream: str = "", publisher: str = "") -> list[Event]:
    """All that is in a stream, in order; of one publisher if that is named."""
    with anabranch.Fetcher(address, stream=stream) as fetcher:
        rows = chain.from_iterable(rows_in(each.data) for each in fetcher.fetch(1))
        events = [decode_event(body) for _, _, body in rows]
    return [each for each in events if not publisher or _publisher(each) == publisher]


def _publisher(event: Event) -> str:
    assert event.id is not None
    return event.id.publisher


def publish_numbered(address: str, source: str, count: int) -> None:
    """So many events for a copy: numbers from 0 on, with where they come from."""
    with anabranch.connect_blocking(address, name=f"feed-{source}") as client:
        client.publish_many({"source": source, "n": n} for n in range(count))


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """How a copy differs from what was copied."""

    rows: int
    missing: int
    duplicate: int
    reordered: int


def compared(copied: Iterable[Event], counts: Mapping[str, int]) -> Findings:
    """What is wrong with a copy of numbered events; `counts` says how many of each source."""
    numbers: dict[str, list[int]] = {source: [] for source in counts}
    for event in copied:
        number = event["n"]
        assert isinstance(number, int)
        numbers[str(event["source"])].append(number)
    missing = duplicate = reordered = 0
    for source, found in numbers.items():
        missing += len({*range(counts[source])} - {*found})
        duplicate += len(found) - len({*found})
        reordered += sum(later < earlier for earlier, later in pairwise(found))
    rows = sum(map(len, numbers.values()))
    return Findings(rows=rows, missing=missing, duplicate=duplicate, reordered=reordered)


# -- drivers ---------------------------------------------------------------------------------------


class Driver:
    """A process with a Spark session of its own, to be killed. It ends with the block."""

    def __init__(self, log: Path, module: str, *arguments: str) -> None:
        self.log = log
        paths = [str(ROOT), str(ROOT / "src"), *filter(None, sys.path)]
        with log.open("ab") as out:
            # A session of its own: Java, and what Java starts, is killed together with it.
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def wait(self, bound_s: float = BOUND_S) -> int:
        """The exit code."""
        return self.process.wait(bound_s)

    def kill(self) -> None:
        """Kill −9, Python and Java."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(BOUND_S)

    def said(self) -> str:
        """All that it logged."""
        return self.log.read_text(errors="replace")

    def descendants(self) -> dict[int, str]:
        """Process → its command line, of all that this driver has started."""
        children: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            fields = _read(path).rpartition(")")[2].split()
            if fields:
                children.setdefault(int(fields[1]), []).append(int(path.parent.name))
        found: dict[int, str] = {}
        waiting = [self.process.pid]
        while waiting:
            for child in children.get(waiting.pop(), []):
                found[child] = _read(Path(f"/proc/{child}/cmdline")).replace("\0", " ")
                waiting.append(child)
        return found

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        if self.runs:
            self.kill()


def _read(path: Path) -> str:
    """A file of a process that may have ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
