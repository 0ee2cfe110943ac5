"""What must hold after a power cut: a start from an image, and questions to the broker it makes.

A start must never refuse: the disk honoured every sync, so whatever is missing was promised to
nobody. Then:

1. The log verifies without a finding, the catalog is sound, and both belong together.
2. Every tick holds what was written as that tick, and no tick that anybody was told is missing.
3. Every confirmed event is in the log at its tick, unless that was forgotten; published again, it
   is recognised. What was published and not confirmed can be published again and is there once.
4. A batch that was committed is there, whole and once. What was staged can be committed.
5. A durable subscription is there, and its client gets every match from its start on, or after the
   last tick that it acknowledged, in order and once.
6. A pattern is there.

2 to 6 are asked of the core over what the real store found, in virtual time.
"""

import sqlite3
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import msgspec

from anabranch.core import contract
from anabranch.core.broker import Broker
from anabranch.core.origin.log_tail import AnyRecord, EventRecord, decode_record
from anabranch.model.client_frames import (
    AnyClientFrame,
    Commit,
    Committed,
    Confirmed,
    Connect,
    Defined,
    Deliver,
    Publish,
    Subscribe,
    Subscribed,
    Withheld,
)
from anabranch.model.encoding import decode_envelope, decode_event
from anabranch.model.errors import AnabranchError
from anabranch.model.event import Event, EventId
from anabranch.model.filter import Filter
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.store.files import CATALOG
from anabranch.store.log import record_time_ns, records_after
from anabranch.store.log_repair import verify
from anabranch.store.log_view import locate
from anabranch.store.segment import good_entries
from anabranch.store.store import Store
from tests.power.broker_child import NAME, NETWORK_NAME, STORE, config
from tests.power.lossy_disk import Image, lay_out
from tests.power.promises import Durable, Promises
from tests.power.workload import BATCH_EVENTS, STATE
from tests.power.write_stream import Call
from tests.store_parts import Ears

_HEADER_SALT = slice(10, 14)
_MAGIC = b"anabrlog"
#: Virtual seconds in which everything has to arrive.
_PATIENCE_S = 30.0
_REPEATED = 8


class BrokenPromiseError(AssertionError):
    """A power cut cost something that was promised."""


class Found(msgspec.Struct, frozen=True):
    """What a start found."""

    recovered: contract.Recovered
    first_tick: int
    records: dict[int, bytes]
    notes: list[str]


# -- the store ------------------------------------------------------------------------------------


def start(image: Image, root: Path) -> Found:
    """Start the real store on an image, in an empty directory."""
    lay_out(image, root)
    state = root / STATE
    ears = Ears()
    try:
        if (state / "identity.toml").exists():
            verify(locate(state), record_time_ns)
        store = Store.open(state, network=NETWORK_NAME, broker=NAME, options=STORE, listener=ears)
    except AnabranchError as error:
        raise BrokenPromiseError(f"it does not start: {error}") from error
    recovered = store.recovered
    pieces = store.pieces()
    found = Found(
        recovered,
        recovered.first_tick,
        dict(records_after(pieces, recovered.first_tick)),
        store.notes,
    )
    store.close()
    _require(not ears.errors, f"it does not stop: {ears.errors}")
    verified = verify(locate(state), record_time_ns)
    _require(not verified.findings, f"after a start the log has {verified.findings}")
    with closing(sqlite3.connect(state / CATALOG)) as catalog:
        (answer,) = catalog.execute("PRAGMA integrity_check").fetchone()
    _require(answer == "ok", f"the catalog: {answer}")
    return found


def written_records(calls: list[Call], inodes: Mapping[str, int], image: Image) -> dict[int, bytes]:
    """Every record that a life wrote, by its tick."""
    salts: dict[int, int] = {}
    for path, number in inodes.items():
        content = image[path]
        if path.endswith(".segment") and content is not None:
            salts[number] = int.from_bytes(content[_HEADER_SALT])
    records: dict[int, bytes] = {}
    for call in calls:
        if call.kind == "C" and call.text.endswith(".segment"):
            salts[call.inode] = 0
        elif call.kind == "W" and call.inode in salts:
            if call.data.startswith(_MAGIC):
                salts[call.inode] = int.from_bytes(call.data[_HEADER_SALT])
            for _, tick, body, _ in good_entries(call.data, 0, salts[call.inode]):
                if body:
                    same = records.setdefault(tick, body) == body
                    _require(same, f"tick {tick} was written twice, with another record")
    return records


# -- the core -------------------------------------------------------------------------------------


class Interview:
    """The core of a broker that was started on an image, in virtual time, and its clients."""

    def __init__(self, found: Found) -> None:
        self.records = dict(found.records)
        last = max(self.records, default=0)
        self.now = _record(self.records[last]).time_ns / 1e9 + 1.0 if last else 1e9
        self._work: deque[contract.Stimulus] = deque([contract.Started()])
        self._sessions: dict[str, int] = {}
        self._requests = 0
        #: Who heard what.
        self.heard: list[tuple[str, AnyClientFrame]] = []
        try:
            self._broker = Broker(config(Path()).core(), _own(found.recovered), self.now)
        except AnabranchError as error:
            raise BrokenPromiseError(f"the broker does not start: {error}") from error
        self.run()

    def request(self) -> int:
        """A number for a request."""
        self._requests += 1
        return self._requests

    def tell(self, client: str, frame: AnyClientFrame) -> None:
        """A client says something."""
        if client not in self._sessions:
            self._sessions[client] = number = len(self._sessions) + 1
            self._work.append(contract.ClientConnected(number))
            self._work.append(
                contract.ClientFrameReceived(number, Connect(PROTOCOL_VERSION, client))
            )
        self._work.append(contract.ClientFrameReceived(self._sessions[client], frame))

    def run(self) -> None:
        """Until nothing more happens at this time."""
        while self._work:
            for effect in self._broker.handle(self.now, self._work.popleft()):
                self._perform(effect)

    def pass_time(self) -> None:
        """Go on to the next deadline."""
        deadline = self._broker.next_deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        self._work.append(contract.TimePassed())
        self.run()

    def _perform(self, effect: contract.Effect) -> None:
        if isinstance(effect, contract.Append):
            self.records[effect.tick] = effect.record
        elif isinstance(effect, contract.Sync):
            self._work.append(contract.Synced(effect.number))
        elif isinstance(effect, contract.Read):
            ticks = range(effect.first, effect.last + 1)
            records = tuple(self.records[tick] for tick in ticks if tick in self.records)
            self._work.append(contract.LogRead(effect.request, effect.first, records))
        elif isinstance(effect, contract.SendClient):
            names = {number: name for name, number in self._sessions.items()}
            self.heard.append((names[effect.session], effect.frame))
        elif isinstance(effect, contract.CutClient):
            raise BrokenPromiseError(f"a client was cut: {effect.reason}")


def check(found: Found, promises: Promises, written: Mapping[int, bytes]) -> None:
    """Raise `BrokenPromiseError` if anything that was promised does not hold."""
    for tick, record in found.records.items():
        _require(written.get(tick) == record, f"tick {tick} holds what was not written there")
    last = max(found.records, default=found.first_tick - 1)
    _require(last >= promises.tick, f"tick {promises.tick} was told, the log ends with {last}")
    _check_confirmed(found, promises, written)
    interview = Interview(found)
    _Questions(interview, promises, found).ask()


def _check_confirmed(found: Found, promises: Promises, written: Mapping[int, bytes]) -> None:
    for tick, record in written.items():
        event_id = _id(record)
        if event_id is None or tick < found.first_tick or not promises.is_confirmed(event_id):
            continue
        _require(tick in found.records, f"{event_id} was confirmed, and tick {tick} is gone")
    ids = [event_id for record in found.records.values() if (event_id := _id(record))]
    _require(len(ids) == len(set(ids)), "an event is in the log twice")


class _Questions:
    """What the clients ask a broker after a power cut."""

    def __init__(self, interview: Interview, promises: Promises, found: Found) -> None:
        self._interview = interview
        self._promises = promises
        self._found = found
        self._durables = {
            name: durable
            for name, durable in promises.durables.items()
            if durable.is_told and not durable.is_over
        }
        #: Requests that must be answered with this kind of frame.
        self._open: dict[int, tuple[type[AnyClientFrame], str]] = {}
        #: (publisher, incarnation) → the last event that is published again.
        self._last: dict[tuple[str, int], int] = {}

    def ask(self) -> None:
        """Ask everything, and wait for the answers."""
        interview = self._interview
        self._publish_again()
        batches = self._commit_again()
        for name, (client, frame) in self._promises.patterns.items():
            request = self._expect(Defined, f"pattern {name}")
            again = msgspec.structs.replace(frame, request=request, must_exist=True, is_new=False)
            interview.tell(client, again)
        for name, durable in self._durables.items():
            request = self._expect(Subscribed, f"subscription {name}")
            filter, window = durable.frame.filter, 4_096
            back = Subscribe(request, name, filter, "durable", "resume", window=window)
            interview.tell(durable.client, back)
        interview.run()
        until = interview.now + _PATIENCE_S
        while missing := self._missing():
            _require(interview.now < until, f"after a power cut {missing}")
            interview.pass_time()
        self._check_once()
        for batch in batches:
            self._check_batch(batch)
        for batch, asked in self._promises.batches.items():
            if asked.is_told and asked.ticks[0] >= self._found.first_tick:
                self._check_batch(batch)

    def _expect(self, kind: type[AnyClientFrame], what: str) -> int:
        request = self._interview.request()
        self._open[request] = (kind, what)
        return request

    def _publish_again(self) -> None:
        bodies: dict[str, list[bytes]] = {}
        for event_id, body in self._promises.published.items():
            key = (event_id.publisher, event_id.incarnation)
            if event_id.sequence > self._promises.confirmed.get(key, 0) - _REPEATED:
                bodies.setdefault(event_id.publisher, []).append(body)
                self._last[key] = event_id.sequence
        for publisher, again in bodies.items():
            self._interview.tell(publisher, Publish(again))

    def _commit_again(self) -> list[int]:
        """Commit the newest batch again, and what is staged; the batches."""
        promises = self._promises
        known = promises.batches
        batches = []
        if known:
            newest = max(known)
            frame = known[newest].frame
            request = self._expect(Committed, f"batch {newest}")
            again = msgspec.structs.replace(frame, request=request)
            self._interview.tell(known[newest].client, again)
            batches.append(newest)
        taken = {token for each in known.values() for token in each.frame.tokens}
        whole = {token for (token, _), chunk in promises.staged.items() if chunk.is_last}
        for token in sorted(whole - taken):
            request = self._expect(Committed, f"what is staged as {token}")
            frame = Commit(request, f"sink of {token}", "query", 1, (token,))
            self._interview.tell("stager", frame)
        return batches

    # -- answers ----------------------------------------------------------------------------------

    def _missing(self) -> str:
        """What has not come yet, or ""."""
        answered = {getattr(frame, "request", 0): frame for _, frame in self._interview.heard}
        for request, (kind, what) in self._open.items():
            answer = answered.get(request)
            _require(answer is None or isinstance(answer, kind), f"{what}: {answer}")
            if answer is None:
                return f"{what} is not answered"
        confirmed: dict[tuple[str, int], int] = {}
        for _, frame in self._interview.heard:
            if isinstance(frame, Confirmed):
                confirmed[frame.publisher, frame.incarnation] = frame.sequence
        for key, sequence in self._last.items():
            if confirmed.get(key, 0) < sequence:
                return f"{key} is confirmed up to {confirmed.get(key, 0)}, not {sequence}"
        for name, durable in self._durables.items():
            lacking = self._wanted(durable) - {*self._delivered(name)}
            if lacking:
                return f"{name} does not get the ticks {sorted(lacking)}"
        return ""

    def _wanted(self, durable: Durable) -> set[int]:
        first = max(durable.acked + 1, durable.start)
        if not durable.start:
            # Where it starts was told to nobody.
            return set()
        return {
            tick
            for tick, record in self._interview.records.items()
            if tick >= first and _matches(durable.frame.filter, record)
        }

    def _delivered(self, name: str) -> list[int]:
        return [
            datum.tick
            for _, frame in self._interview.heard
            if isinstance(frame, Deliver)
            for matches in frame.matches
            if matches.subscription == name
            for datum in matches.data
        ]

    def _check_once(self) -> None:
        for name in self._durables:
            ticks = self._delivered(name)
            _require(ticks == sorted(set(ticks)), f"{name} gets {ticks}")
        for client, frame in self._interview.heard:
            _require(not isinstance(frame, Withheld), f"{client} is told of {frame}")
        ids = [found for record in self._interview.records.values() if (found := _id(record))]
        _require(len(ids) == len(set(ids)), "an event that was published again is there twice")
        for tick, record in self._interview.records.items():
            event_id = _id(record)
            is_new = tick not in self._found.records
            if is_new and event_id is not None and self._promises.is_confirmed(event_id):
                raise BrokenPromiseError(f"{event_id} was confirmed, and is taken for new")

    def _check_batch(self, batch: int) -> None:
        places = []
        for record in self._interview.records.values():
            event = _event(record)
            if event is not None and event.attributes.get("batch") == batch:
                places.append(event.attributes["place"])
        first = self._promises.batches[batch].ticks[0]
        is_forgotten = 0 < first < self._found.first_tick
        _require(is_forgotten or places == [*range(BATCH_EVENTS)], f"batch {batch} has {places}")


def _own(recovered: contract.Recovered) -> contract.Recovered:
    """A broker may take what it finds apart."""
    catalog = {table: dict(rows) for table, rows in recovered.catalog.items()}
    return msgspec.structs.replace(recovered, catalog=catalog)


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise BrokenPromiseError(why)


@lru_cache(8_192)
def _record(data: bytes) -> AnyRecord:
    return decode_record(data)


@lru_cache(8_192)
def _event(data: bytes) -> Event | None:
    record = _record(data)
    return decode_event(record.body) if isinstance(record, EventRecord) else None


@lru_cache(8_192)
def _id(data: bytes) -> EventId | None:
    record = _record(data)
    return decode_envelope(record.body).id if isinstance(record, EventRecord) else None


@lru_cache(8)
def _filter(text: str) -> Filter:
    return Filter.parse(text)


@lru_cache(32_768)
def _matches(text: str, data: bytes) -> bool:
    event = _event(data)
    return event is not None and bool(_filter(text).matches(event.attributes))
