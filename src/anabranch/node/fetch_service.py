"""The fetch service: describes this broker's stream to clients, and serves its log in bulk.

Synced ticks never change, so a fetch needs nothing from the core except the extent of the log when
it starts. It is served beside the core. Rules:

1. `THREADS` separate threads read: neither the loop nor the thread that reads for replays waits for
   them. At most one request per session is in progress, and sessions take turns. A request that
   still waits for a thread when its session ends is dropped.
2. A session may have `fetches_max` unanswered requests; another one is refused. They are answered
   in order.
3. While the send queue of a client is full, none of its requests starts: so a client that does not
   read costs one answer beyond its queue. If it keeps sending requests, it is disconnected.
4. An answer never exceeds the synced head, and has at most `fetch_bytes_max` bytes of rows, or one
   event.
5. A corrupt log stops the broker, as it does for replays. Any other failure (an invalid filter, an
   unreadable disk, a record of a later version) is a refusal with its reason.

State: requests in progress, and compiled filters. Safe to lose: clients retry.
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
#: Bytes of a frame in addition to its rows.
_FRAMING_BYTES_MAX = 64
_REASON_CHARACTERS_MAX = 1_000
_NS_PER_S = 1e9
#: In MessagePack: empty bytes, and the prefix of bytes with a 32-bit length.
_NO_BYTES, _BYTES_32 = b"\xc4\0", b"\xc6"

_LARGER = "connect with a larger frame_bytes_max"

#: A frame with its length prefix, and the number of events in it.
_Answer = tuple[memoryview, int]


@dataclass(frozen=True, slots=True)
class OwnStream:
    """Access to a broker's own stream."""

    network: str
    broker: str
    #: Stream → its origin's address for clients, or "".
    origins: Callable[[], Mapping[str, str]]
    #: The oldest tick, and the newest synced one.
    extent: Callable[[], tuple[int, int]]
    #: The readable pieces of the log; may be called from any thread.
    pieces: Callable[[], Sequence[Piece]]
    #: The broker's clock, in seconds.
    now: Callable[[], float]


class FetchSession(Protocol):
    """A session as seen by the fetch service."""

    number: int
    client: str
    is_full: bool

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that the client accepts."""

    def answer(self, data: memoryview) -> None:
        """Send a frame with its length prefix at once; takes ownership of the bytes."""

    def cut(self, reason: str) -> None: ...


@dataclass(slots=True)
class _RequestQueue:
    """The requests of one session."""

    session: FetchSession
    requests: deque[Describe | Fetch] = field(default_factory=deque)
    is_busy: bool = False
    #: Whether the session has ended; threads check this.
    is_left: bool = False

    @property
    def count(self) -> int:
        return len(self.requests) + self.is_busy


@dataclass(frozen=True, slots=True)
class _Job:
    """One request, with everything that a thread needs to answer it."""

    request: Describe | Fetch
    session: int
    client: str
    oldest: int
    head: int
    now_ns: int
    #: The largest frame that the client accepts.
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
        self._queues: dict[int, _RequestQueue] = {}
        self._is_closed = False

    # -- for sessions ---------------------------------------------------------------------------

    def ask(self, session: FetchSession, request: Describe | Fetch) -> None:
        """Handle a request of a client."""
        queue = self._queues.get(session.number)
        if queue is None:
            queue = self._queues[session.number] = _RequestQueue(session)
        if queue.count >= self._limits.fetches_max:
            reason = f"{queue.count} requests are in progress; wait for an answer (fetches_max)"
            if session.is_full:
                # Refusals would accumulate too.
                session.cut(reason)
            else:
                self._refuse(session, Refused(request.request, reason))
            return
        queue.requests.append(request)
        self._begin(queue)

    def room(self, session: FetchSession) -> None:
        """The send queue of a client has space again."""
        queue = self._queues.get(session.number)
        if queue is not None:
            self._begin(queue)

    def left(self, session: int) -> None:
        """A session has ended."""
        queue = self._queues.pop(session, None)
        if queue is not None:
            queue.is_left = True
            self._slicer.forget(session)

    def close(self) -> None:
        """Answer nothing more. Running threads finish their work."""
        self._is_closed = True
        self._queues.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- one request after the other ------------------------------------------------------------

    def _begin(self, queue: _RequestQueue) -> None:
        if queue.is_busy or queue.session.is_full or not queue.requests or self._is_closed:
            return
        queue.is_busy = True
        job = self._job(queue.session, queue.requests.popleft())
        self._threads.submit(self._work, queue, job, asyncio.get_running_loop())

    def _job(self, session: FetchSession, request: Describe | Fetch) -> _Job:
        now_ns = int(self._stream.now() * _NS_PER_S)
        identity = (session.number, session.client)
        return _Job(request, *identity, *self._stream.extent(), now_ns, session.frame_bytes_max)

    def _done(self, queue: _RequestQueue, job: _Job, outcome: _Answer | Exception) -> None:
        if self._is_closed:
            return
        queue.is_busy = False
        if isinstance(outcome, CorruptError):
            self._fail(str(outcome))
            return
        if isinstance(outcome, Exception) and not isinstance(outcome, LocalError):
            # An unreadable disk, or an internal error that does not affect the core.
            self._log.error("cannot answer a fetch: %r", outcome)
        if job.session not in self._queues:
            # The session ended, perhaps while its filter was being compiled.
            self._slicer.forget(job.session)
            return
        if isinstance(outcome, Exception):
            self._refuse(queue.session, _refusal(job.request, outcome))
        else:
            data, events = outcome
            self._counters.fetches += 1
            self._counters.events_fetched += events
            queue.session.answer(data)
        self._begin(queue)

    def _refuse(self, session: FetchSession, refused: Refused) -> None:
        self._counters.requests_refused += 1
        session.answer(memoryview(framed(encode_client(refused, self._limits))))

    # -- in a thread ----------------------------------------------------------------------------

    def _work(self, queue: _RequestQueue, job: _Job, loop: asyncio.AbstractEventLoop) -> None:
        if queue.is_left:
            return
        try:
            outcome: _Answer | Exception = self._answered(job)
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything
            outcome = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has ended
            loop.call_soon_threadsafe(self._done, queue, job, outcome)

    def _answered(self, job: _Job) -> _Answer:
        """The encoded answer to a request, and the number of events in it."""
        request = job.request
        if isinstance(request, Describe):
            described = encode_client(self._described(job, request), self._limits)
            if len(described) > job.frame_bytes_max:
                raise LocalError(f"the description takes {len(described)} bytes; {_LARGER}")
            return memoryview(framed(described)), 0
        found = self._fetched(job, request)
        return framed_slice(request.request, found), found.count

    def _described(self, job: _Job, request: Describe) -> Described:
        stream, oldest, head = self._stream, job.oldest, job.head
        pieces = stream.pieces()
        return Described(
            request.request,
            stream.network,
            stream.broker,
            oldest,
            head,
            _time_ns(pieces, oldest) if oldest <= head else 0,
            _time_ns(pieces, head) if oldest <= head else 0,
            dict(stream.origins()),
        )

    def _fetched(self, job: _Job, request: Fetch) -> Slice:
        first = request.first
        if request.last < first:
            raise LocalError(f"ticks {first} to {request.last} are not a range: the last is lower")
        if first < job.oldest:
            raise NotKeptError(first, job.oldest)
        last = min(request.last, job.head)
        if first > last:
            return Slice(first, job.head, 0, memoryview(bytearray(FRONT_BYTES)))
        room = job.frame_bytes_max - _FRAMING_BYTES_MAX
        wanted = Wanted(
            first=first,
            last=last,
            client=job.client,
            now_ns=job.now_ns,
            bytes_max=min(request.bytes_max, self._limits.fetch_bytes_max, room),
        )
        found = self._slicer.read(self._stream.pieces(), wanted, job.session, request.filter)
        if len(found.rows) > room:
            raise LocalError(
                f"an event between ticks {first} and {found.through} takes {len(found.rows)} bytes,"
                f" and the client's frames at most {room}; {_LARGER}"
            )
        return found


def framed_slice(request: int, found: Slice) -> memoryview:
    """A `Fetched` frame with its length prefix, built around the rows in place."""
    empty = encode_client(Fetched(request, found.first, found.through, found.count, b""))
    # The encoding ends with empty bytes; replace that by the length of the rows.
    head = empty[: -len(_NO_BYTES)] + _BYTES_32 + len(found.rows).to_bytes(4)
    start = FRONT_BYTES - LENGTH_BYTES - len(head)
    frame = found.buffer[start:]
    frame[:LENGTH_BYTES] = (len(frame) - LENGTH_BYTES).to_bytes(LENGTH_BYTES)
    frame[LENGTH_BYTES : LENGTH_BYTES + len(head)] = head
    return frame


def _time_ns(pieces: Sequence[Piece], tick: int) -> int:
    """When a tick was created; 0 if it was just deleted."""
    found = read_records(pieces, tick, tick, 1)
    return record_time_ns(found[0]) if found else 0


def _refusal(request: Describe | Fetch, error: Exception) -> Refused:
    reason = str(error) or type(error).__name__
    reason = reason[:_REASON_CHARACTERS_MAX]
    if isinstance(error, NotKeptError):
        return Refused(request.request, reason, NOT_KEPT, error.oldest)
    return Refused(request.request, reason)
