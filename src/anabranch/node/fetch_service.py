"""Serving the log: what clients ask about this broker's own stream, and read of it in bulk.

Ticks that are synced never change, so a fetch needs nothing of the core but how far the log goes at
the moment it begins. It is served beside the core. Rules:

1. Reading is done by `THREADS` threads of their own: neither the loop, nor the thread that reads
   for replays, waits for them. Of each session one question is in work, and sessions take turns.
   What waits for a thread when its session leaves is not begun.
2. A session may have `fetches_max` questions that are not answered; another one is refused. They
   are answered in their order.
3. While a client's connection is full, none of its questions begins: so a client that does not read
   costs one answer more than anybody else's queue. If it goes on asking nevertheless, it is cut.
4. An answer never goes beyond the head, which is synced, and has at most `fetch_bytes_max` bytes of
   rows, or one event.
5. A log that turns out to be corrupt ends the broker, as it does for replays. Anything else that
   keeps a fetch from being answered (a bad filter, a disk that does not read, a record of a later
   version) is a refusal with its reason.

State: questions on their way, and compiled filters. Safe to lose: clients ask again.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from anabranch.model.client_frames import (
    NOT_KEPT,
    Describe,
    Described,
    Fetch,
    Fetched,
    Refused,
)
from anabranch.model.errors import LocalError
from anabranch.model.limits import Limits
from anabranch.node.metrics import NodeCounters
from anabranch.node.node_log import NodeLog
from anabranch.store.bulk.slices import FRONT_BYTES, NotKeptError, Slice, Slicer, Wanted
from anabranch.store.log import Piece, read_records, record_time_ns
from anabranch.store.segment import CorruptError
from anabranch.wire.codec import encode_client
from anabranch.wire.framing import LENGTH_BYTES, framed

THREADS = 2
#: What a frame has beside the rows in it.
_FRAMING_BYTES_MAX = 64
_REASON_CHARACTERS_MAX = 1_000
_NS_PER_S = 1e9
#: In MessagePack: no bytes, and so many bytes as the next four say.
_NO_BYTES, _BYTES_32 = b"\xc4\0", b"\xc6"

_LARGER = "connect with a larger frame_bytes_max"

#: A frame with its length in front, and how many events are in it.
_Answer = tuple[memoryview, int]


@dataclass(frozen=True, slots=True)
class OwnStream:
    """What there is to know of a broker's own stream, at any moment."""

    network: str
    broker: str
    #: Stream → where clients reach its origin, or "".
    origins: Callable[[], Mapping[str, str]]
    #: The oldest tick, and the newest that is synced.
    extent: Callable[[], tuple[int, int]]
    #: What there is to read; may be asked by any thread.
    pieces: Callable[[], Sequence[Piece]]
    #: The broker's clock, in seconds.
    now: Callable[[], float]


class FetchSession(Protocol):
    """A session, as it is seen from here."""

    number: int
    client: str
    is_full: bool

    @property
    def frame_bytes_max(self) -> int:
        """What its client takes at once."""

    def answer(self, data: memoryview) -> None:
        """Send a frame with its length in front, at once; the bytes are the session's now."""

    def cut(self, reason: str) -> None:
        """End the session."""


@dataclass(slots=True)
class _Desk:
    """The questions of one session."""

    asker: FetchSession
    questions: deque[Describe | Fetch] = field(default_factory=deque)
    is_busy: bool = False
    #: Whether nobody waits for an answer any more; threads look here.
    is_left: bool = False

    @property
    def count(self) -> int:
        return len(self.questions) + self.is_busy


@dataclass(frozen=True, slots=True)
class _Job:
    """One question, with all that a thread needs to answer it."""

    question: Describe | Fetch
    session: int
    client: str
    oldest: int
    head: int
    now_ns: int
    #: What the client takes at once.
    frame_bytes_max: int


class FetchService:
    """Serves the log of one node. See the rules at the top of this module."""

    def __init__(
        self,
        stream: OwnStream,
        counters: NodeCounters,
        limits: Limits,
        log: NodeLog,
        fail: Callable[[str], None],
    ) -> None:
        self._stream = stream
        self._log = log
        self._counters = counters
        self._limits = limits
        self._fail = fail
        self._slicer = Slicer(limits)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="anabranch-fetch")
        self._desks: dict[int, _Desk] = {}
        self._is_closed = False

    # -- for sessions ---------------------------------------------------------------------------

    def ask(self, asker: FetchSession, question: Describe | Fetch) -> None:
        """A client has a question."""
        desk = self._desks.get(asker.number)
        if desk is None:
            desk = self._desks[asker.number] = _Desk(asker)
        if desk.count >= self._limits.fetches_max:
            reason = f"there are {desk.count} questions under way; wait for an answer (fetches_max)"
            if asker.is_full:
                # Refusals would pile up, too.
                asker.cut(reason)
            else:
                self._refuse(asker, Refused(question.request, reason))
            return
        desk.questions.append(question)
        self._begin(desk)

    def room(self, asker: FetchSession) -> None:
        """A client takes answers again."""
        desk = self._desks.get(asker.number)
        if desk is not None:
            self._begin(desk)

    def left(self, session: int) -> None:
        """A session is over."""
        desk = self._desks.pop(session, None)
        if desk is not None:
            desk.is_left = True
            self._slicer.forget(session)

    def close(self) -> None:
        """Answer nothing more. What a thread is at, it ends by itself."""
        self._is_closed = True
        self._desks.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- one question after the other -----------------------------------------------------------

    def _begin(self, desk: _Desk) -> None:
        if desk.is_busy or desk.asker.is_full or not desk.questions or self._is_closed:
            return
        desk.is_busy = True
        job = self._job(desk.asker, desk.questions.popleft())
        self._threads.submit(self._work, desk, job, asyncio.get_running_loop())

    def _job(self, asker: FetchSession, question: Describe | Fetch) -> _Job:
        now_ns = int(self._stream.now() * _NS_PER_S)
        who = (asker.number, asker.client)
        return _Job(question, *who, *self._stream.extent(), now_ns, asker.frame_bytes_max)

    def _done(self, desk: _Desk, job: _Job, outcome: _Answer | Exception) -> None:
        if self._is_closed:
            return
        desk.is_busy = False
        if isinstance(outcome, CorruptError):
            self._fail(str(outcome))
            return
        if isinstance(outcome, Exception) and not isinstance(outcome, LocalError):
            # The disk does not read, or a mistake of our own; the core is not concerned.
            self._log.error("a fetch cannot be answered: %r", outcome)
        if job.session not in self._desks:
            # It left meanwhile; perhaps its filter was being compiled when it was forgotten.
            self._slicer.forget(job.session)
            return
        if isinstance(outcome, Exception):
            self._refuse(desk.asker, _refusal(job.question, outcome))
        else:
            data, events = outcome
            self._counters.fetches += 1
            self._counters.events_fetched += events
            desk.asker.answer(data)
        self._begin(desk)

    def _refuse(self, asker: FetchSession, refused: Refused) -> None:
        self._counters.requests_refused += 1
        asker.answer(memoryview(framed(encode_client(refused, self._limits))))

    # -- in a thread ----------------------------------------------------------------------------

    def _work(self, desk: _Desk, job: _Job, loop: asyncio.AbstractEventLoop) -> None:
        if desk.is_left:
            return
        try:
            outcome: _Answer | Exception = self._answered(job)
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything
            outcome = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has ended
            loop.call_soon_threadsafe(self._done, desk, job, outcome)

    def _answered(self, job: _Job) -> _Answer:
        """The answer to a question, ready to be sent, and how many events are in it."""
        question = job.question
        if isinstance(question, Describe):
            described = encode_client(self._described(job, question), self._limits)
            if len(described) > job.frame_bytes_max:
                raise LocalError(f"what there is to say takes {len(described)} bytes; {_LARGER}")
            return memoryview(framed(described)), 0
        found = self._fetched(job, question)
        return framed_slice(question.request, found), found.count

    def _described(self, job: _Job, question: Describe) -> Described:
        stream, oldest, head = self._stream, job.oldest, job.head
        pieces = stream.pieces()
        return Described(
            question.request,
            stream.network,
            stream.broker,
            oldest,
            head,
            _time_ns(pieces, oldest) if oldest <= head else 0,
            _time_ns(pieces, head) if oldest <= head else 0,
            dict(stream.origins()),
        )

    def _fetched(self, job: _Job, question: Fetch) -> Slice:
        first = question.first
        if question.last < first:
            raise LocalError(f"ticks {first} to {question.last} are no range; the last is lower")
        if first < job.oldest:
            raise NotKeptError(first, job.oldest)
        last = min(question.last, job.head)
        if first > last:
            return Slice(first, job.head, 0, memoryview(bytearray(FRONT_BYTES)))
        room = job.frame_bytes_max - _FRAMING_BYTES_MAX
        wanted = Wanted(
            first=first,
            last=last,
            client=job.client,
            now_ns=job.now_ns,
            bytes_max=min(question.bytes_max, self._limits.fetch_bytes_max, room),
        )
        found = self._slicer.read(self._stream.pieces(), wanted, job.session, question.filter)
        if len(found.rows) > room:
            raise LocalError(
                f"an event between ticks {first} and {found.through} takes {len(found.rows)} bytes,"
                f" and the client's frames at most {room}; {_LARGER}"
            )
        return found


def framed_slice(request: int, found: Slice) -> memoryview:
    """The frame `Fetched` with its length in front, made round the rows where they are."""
    empty = encode_client(Fetched(request, found.first, found.through, found.count, b""))
    # What it ends with says that there are no bytes; here it says how many there are.
    head = empty[: -len(_NO_BYTES)] + _BYTES_32 + len(found.rows).to_bytes(4)
    start = FRONT_BYTES - LENGTH_BYTES - len(head)
    frame = found.buffer[start:]
    frame[:LENGTH_BYTES] = (len(frame) - LENGTH_BYTES).to_bytes(LENGTH_BYTES)
    frame[LENGTH_BYTES : LENGTH_BYTES + len(head)] = head
    return frame


def _time_ns(pieces: Sequence[Piece], tick: int) -> int:
    """When a tick was made; 0 if it was deleted at this very moment."""
    found = read_records(pieces, tick, tick, 1)
    return record_time_ns(found[0]) if found else 0


def _refusal(question: Describe | Fetch, error: Exception) -> Refused:
    reason = str(error) or type(error).__name__
    reason = reason[:_REASON_CHARACTERS_MAX]
    if isinstance(error, NotKeptError):
        return Refused(question.request, reason, NOT_KEPT, error.oldest)
    return Refused(question.request, reason)
