"""How fast a log is read in bulk, from a real broker by one process, and what that costs both.

    broker ── reader       events of one stream, over loopback; the log is on disk before it begins

Rules:

1. The log is written by the store itself, before the broker starts; that is not measured.
2. The reader takes what comes and looks at nothing but the counts: what rows become is its own
   matter. Every tick must be accounted for, and as many rows must come as match, or the run fails.
3. CPU time is that of whole processes, the least of several passes; rates are wall time, of the
   quickest. A first pass, in which the broker loads its kernels, does not count.
4. Costs are per event of the log, whether it is wanted or not.

This module keeps no state.
"""

import threading
import time
from pathlib import Path

import msgspec

from anabranch.config.network_file import NetworkFile, loads
from anabranch.core.contract import LogRead
from anabranch.core.records import EventRecord, encode_record
from anabranch.local.measuring import words as say
from anabranch.local.measuring.shapes import ORIGIN
from anabranch.local.measuring.stage import PlayerProcess, Stage
from anabranch.model.encoding import encode_event
from anabranch.model.errors import LocalError
from anabranch.model.event import Event, EventId, Value
from anabranch.store.store import Store

_SYNC_EVERY = 1_000
#: Filter → one of so many events matches; of the symbols there are a hundred.
FILTERS = {"": 1, "price > 0": 1, "symbol = 'S7'": 100}
_NETWORK = "measured"


class FetchSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much is read."""

    events: int = 200_000
    payload_bytes: int = 50
    passes: int = 4


class FetchCost(msgspec.Struct, frozen=True, kw_only=True):
    """What reading the whole log took."""

    filter: str
    rows: int
    #: Ticks of the log that were dealt with in a second, wanted or not.
    ticks_per_s: float
    broker_us_per_event: float
    reader_us_per_event: float


class FetchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    size: FetchSize
    event_bytes: int
    costs: list[FetchCost]


class _Pass(msgspec.Struct, frozen=True):
    wall_s: float
    broker_s: float
    reader_s: float
    rows: int


async def measure_fetches(size: FetchSize, directory: Path) -> FetchFigures:
    """One broker, one reader, every filter."""
    stage = Stage(_network(), directory)
    event_bytes = fill(stage.network.state_directory(ORIGIN), _NETWORK, ORIGIN, size)
    async with stage:
        reader = await stage.player("reader", ORIGIN)
        costs = [await _cost(stage, reader, size, text) for text in FILTERS]
    return FetchFigures(size=size, event_bytes=event_bytes, costs=costs)


async def _cost(stage: Stage, reader: PlayerProcess, size: FetchSize, text: str) -> FetchCost:
    await _run(stage, reader, size, text)
    passes = [await _run(stage, reader, size, text) for _ in range(size.passes)]
    rows = passes[0].rows
    if rows != size.events // FILTERS[text]:
        raise LocalError(f"{rows:,} of {size.events:,} events came for the filter {text!r}")
    return FetchCost(
        filter=text,
        rows=rows,
        ticks_per_s=size.events / min(each.wall_s for each in passes),
        broker_us_per_event=min(each.broker_s for each in passes) / size.events * 1e6,
        reader_us_per_event=min(each.reader_s for each in passes) / size.events * 1e6,
    )


async def _run(stage: Stage, reader: PlayerProcess, size: FetchSize, text: str) -> _Pass:
    broker_s, reader_s = stage.cpu_s()[ORIGIN], reader.cpu_s
    done = await reader.do(
        say.Fetch(address=stage.network.address(ORIGIN), last=size.events, filter=text)
    )
    broker_s = stage.cpu_s()[ORIGIN] - broker_s
    return _Pass(done.seconds, broker_s, reader.cpu_s - reader_s, done.events)


def _network() -> NetworkFile:
    lines = ("[network]", f'name = "{_NETWORK}"', "[tree]", f"{ORIGIN} = []")
    options = ("[options]", "keep_s = 86_400.0")
    return loads("\n".join((*lines, *options)), Path("measured.toml"))


# -- a log ---------------------------------------------------------------------------------------


class _Word:
    """A listener that lets one thread wait for a sync."""

    def __init__(self) -> None:
        self._said = threading.Semaphore(0)
        self._error: Exception | None = None

    def wait(self) -> None:
        """Until the next word."""
        self._said.acquire()
        if self._error is not None:
            raise self._error

    def synced(self, number: int) -> None:  # noqa: ARG002 - there is only one at a time
        """Everything is on disk."""
        self._said.release()

    def log_read(self, read: LogRead) -> None:
        """Nobody asks."""

    def log_full(self, full: bool) -> None:
        """A full disk is waited for."""

    def failed(self, error: Exception) -> None:
        """The disk is broken."""
        self._error = error
        self._said.release()


def fill(state: Path, network: str, broker: str, size: FetchSize) -> int:
    """Write a log for a broker that does not run; returns the bytes of the last event."""
    word = _Word()
    store = Store.open(state, network=network, broker=broker, listener=word)
    begin_ns = time.time_ns() - size.events
    body = b""
    for tick in range(1, size.events + 1):
        body = encode_event(_event(tick, begin_ns + tick, size.payload_bytes))
        store.append(tick, encode_record(EventRecord(begin_ns + tick, body)))
        if tick % _SYNC_EVERY == 0 or tick == size.events:
            store.sync(tick)
            word.wait()
    store.close()
    return len(body)


def _event(number: int, time_ns: int, payload_bytes: int) -> Event:
    attributes: dict[str, Value] = {
        "symbol": f"S{number % 100}",
        "price": 100.5,
        "volume": number % 1_000,
    }
    event_id = EventId("feed", 1, number)
    return Event(attributes, payload=bytes(payload_bytes), id=event_id, timestamp_ns=time_ns)
