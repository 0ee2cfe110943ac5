"""Incremental state of statistics: counted parts in a directory, to which runs add.

    state.json                  list of generations, and the last counted tick of each stream
    00000001/sketches/          parts of one run, as Parquet; likewise rates and pairs

A run reads only ticks after the counted ones, writes the result as a new *generation*, and merges
all generations when it reports. Rules:

1. A generation exists once `state.json` names it; that file is replaced atomically. A killed run
   leaves an unnamed directory, which the next run removes.
2. An event is counted once: the generations and their last ticks change together.
3. Ticks of a stream arrive in order. An event that enters an archive after later ones of its stream
   would not be counted; the archives of this project never do that.
4. When there are `GENERATIONS_MAX` generations, they are compacted into one.
5. One run at a time: a lock on the directory, which the operating system releases.
6. The streams belong to one network. Those of another one are refused: its ticks denote other
   events.

State: all of it is in the directory; losing it costs a full recount.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from anabranch.model.errors import LocalError
from anabranch.spark.statistics.counts import DATE, STREAM
from anabranch.spark.statistics.sketches import merged
from anabranch.spark.statistics.summary import Parts

FORMAT: Final = 1
GENERATIONS_MAX: Final = 16
_FILE: Final = "state.json"
_LOCK: Final = "lock"
_FRAMES: Final = ("sketches", "rates", "pairs")


class StateError(LocalError):
    """A directory that cannot be used."""


class StateFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `state.json`."""

    format: int = FORMAT
    generations: tuple[str, ...] = ()
    #: The last counted tick of each stream.
    through: dict[str, int] = {}
    paired: tuple[str, ...] = ()
    #: Network of the streams, if it was known.
    network: str = ""
    #: Highest generation number ever used.
    newest: int = 0


class State:
    """State directory of statistics. See the rules at the top of this module."""

    def __init__(self, directory: Path) -> None:
        # Java has its own working directory.
        self.directory = directory.absolute()
        self.known = _read(directory)

    @contextlib.contextmanager
    def locked(self, network: str = "") -> Iterator[None]:
        """Hold the lock during the block. Removes leftovers of killed runs first."""
        self.directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StateError(f"another run is using {self.directory}") from None
            self.known = _read(self.directory)
            self._check_network(network)
            self._remove_leftovers()
            yield
        finally:
            os.close(handle)

    def _check_network(self, network: str) -> None:
        known = self.known.network
        if network and known and network != known:
            raise StateError(
                f"{self.directory} holds statistics of network {known!r}, but the events belong to"
                f" {network!r}; use a separate directory per network"
            )
        self.known = msgspec.structs.replace(self.known, network=network or known)

    def _remove_leftovers(self) -> None:
        for path in self.directory.iterdir():
            if path.is_dir() and path.name.isdecimal() and path.name not in self.known.generations:
                shutil.rmtree(path)

    # -- reading --------------------------------------------------------------------------------

    def fresh(self, events: DataFrame) -> DataFrame:
        """The events that are not counted yet."""
        missing = {"stream", "tick"} - set(events.columns)
        if missing:
            raise StateError(
                f"the events have no {' and no '.join(sorted(missing))} column, which is needed to"
                " tell which of them were counted before; run without a state"
            )
        through = self.known.through
        if not through:
            return events
        # One condition per stream, so that Spark can prune files and directories.
        streams = [
            (sf.col("stream") == stream) & (sf.col("tick") > tick)
            for stream, tick in through.items()
        ]
        unknown = ~sf.col("stream").isin(*through) | sf.col("stream").isNull()
        return events.where(reduce(lambda one, other: one | other, streams, unknown))

    def parts(self, spark: SparkSession) -> Parts | None:
        """All counted parts; None if there are none."""
        if not self.known.generations:
            return None
        frames = [
            spark.read.parquet(
                *(str(self.directory / each / name) for each in self.known.generations)
            )
            for name in _FRAMES
        ]
        sketches, rates, pairs = frames
        return Parts(sketches, rates, pairs, self.known.paired)

    # -- writing --------------------------------------------------------------------------------

    def add(self, parts: Parts) -> None:
        """Add the parts of a run; compacts if there are many generations."""
        name = self._write(parts)
        found = parts.rates.sparkSession.read.parquet(str(self.directory / name / "rates"))
        rows = found.groupBy(STREAM).agg(sf.max("through").alias("through")).collect()
        through = {row[STREAM]: row.through for row in rows if row.through is not None}
        if not through:
            shutil.rmtree(self.directory / name)
            return
        self._replace(
            generations=(*self.known.generations, name),
            through={**self.known.through, **through},
            paired=parts.paired,
        )
        if len(self.known.generations) >= GENERATIONS_MAX:
            self._compact(parts.rates.sparkSession)

    def _compact(self, spark: SparkSession) -> None:
        whole = self.parts(spark)
        assert whole is not None
        days = merged(whole.sketches, [DATE, STREAM])
        old = self.known.generations
        name = self._write(whole._replace(sketches=days))
        self._replace(generations=(name,), through=self.known.through, paired=self.known.paired)
        for each in old:
            shutil.rmtree(self.directory / each)

    def _write(self, parts: Parts) -> str:
        name = f"{self.known.newest + 1:08d}"
        for frame, of in zip(parts[:3], _FRAMES, strict=True):
            frame.coalesce(1).write.parquet(str(self.directory / name / of))
        return name

    def _replace(
        self, *, generations: Sequence[str], through: Mapping[str, int], paired: Sequence[str]
    ) -> None:
        self.known = StateFile(
            generations=tuple(generations),
            through=dict(through),
            paired=tuple(paired),
            network=self.known.network,
            newest=int(generations[-1]),
        )
        fresh = self.directory / f"{_FILE}.new"
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(self.known))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.directory / _FILE)


def _read(directory: Path) -> StateFile:
    path = directory / _FILE
    try:
        known = msgspec.json.decode(path.read_bytes(), type=StateFile)
    except FileNotFoundError:
        names = [each.name for each in directory.iterdir()] if directory.is_dir() else []
        if not all(name.isdecimal() or name == _LOCK for name in names):
            raise StateError(f"{directory} contains something other than statistics") from None
        return StateFile()
    except (OSError, msgspec.DecodeError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error
    if known.format != FORMAT:
        raise StateError(f"{path} has format {known.format}; this version reads {FORMAT}")
    return known
