"""Peers: what a writer knows about the copies of its stream at other brokers, and records for them.

A `Peer` is another broker that has a copy or should have one: what it has answered, what was sent
to it, what it has acknowledged, and when it is asked again. `RecentRecords` has the newest records
of the own log, so that copies that keep up are not sent what was read from the disk.

Rules

1. A peer that owes an answer is asked again after `ask_again_s`, later and later, until it makes
   progress.
2. An answer counts only if it was asked for, so that a broker that repeats it is not sent the same
   records again and again. A copy that cannot use what it was sent is asked at once, but only
   `_LACKED_MAX` times without progress.

State: what this process has learned; safe to lose.
"""

from collections import deque

from anabranch.model.replication import NO_LIFE, CopyId, Life, LifeAnswer

#: Bytes and ticks of one frame.
FRAME_BYTES = 512 << 10
FRAME_TICKS = 1_024
#: Bytes of records that are kept in memory for copies that are a little behind.
RECENT_BYTES_MAX = 8 << 20
#: A copy that does not acknowledge is asked again after this many times `ask_again_s`, at most.
_BACKOFF_MAX = 8
_LACKED_MAX = 8


class Peer:
    """Another broker that has a copy or should have one. Only this class writes its attributes."""

    __slots__ = (
        "_is_new",
        "_is_page_out",
        "acked",
        "acked_in",
        "again_at",
        "answer",
        "confirmed",
        "copy",
        "factor",
        "in_flight",
        "is_asked",
        "is_last_page",
        "is_silent",
        "lacked",
        "next",
        "page",
        "question",
        "reading",
        "rows_at",
        "tell_at",
        "told",
        "window_bytes",
    )

    def __init__(self) -> None:
        #: The answer in this life, and the copy that answered last in any.
        self.answer: LifeAnswer | None = None
        self.copy: CopyId | None = None
        #: The newest tick that this copy has acknowledged to this process, and in which life.
        self.acked = 0
        self.acked_in = NO_LIFE
        #: The next tick to send.
        self.next = 0
        #: Rows to send before that: index of the table, and the key to continue after; None: none.
        self.rows_at: tuple[int, str] | None = None
        #: The number of the page of rows on its way, and whether it is the last.
        self.page = 0
        self.is_last_page = False
        self._is_page_out = False
        #: Whether its copy was just created, for all that is known.
        self._is_new = False
        #: The number of the newest question.
        self.question = 0
        #: The confirmed tick that its copy has on disk.
        self.confirmed = 0
        #: (last tick, bytes) of the frames that are sent and not acknowledged.
        self.in_flight: deque[tuple[int, int]] = deque()
        #: Their bytes.
        self.window_bytes = 0
        #: The request number of the read in progress; 0 if there is none.
        self.reading = 0
        #: Whether it was asked, or is to be asked, and has not answered since.
        self.is_silent = True
        #: When to ask it again; None: it owes nothing. And the back-off of that.
        self.again_at: float | None = 0.0
        self.factor = 1
        #: Whether an answer is due (rule 2),
        self.is_asked = False
        #: and how often it could not use what it was sent, since it acknowledged anything.
        self.lacked = 0
        #: The confirmed tick that it was told last, and when to tell it the next.
        self.told = 0
        self.tell_at: float | None = None

    def _nothing_in_flight(self) -> None:
        self.in_flight.clear()
        self.window_bytes = 0

    def begin_life(self) -> None:
        """Its answer is about another life."""
        self.answer = None
        self.ask_now()

    def ask_now(self) -> None:
        self._nothing_in_flight()
        self.reading = 0
        self.factor = 1
        self.again_at = 0.0

    def lacks(self, now: float, again_s: float) -> None:
        """It could not use what it was sent: its answer says where to continue."""
        self.lacked += 1
        if self.lacked <= _LACKED_MAX:
            self.ask_now()
        elif self.again_at is None:
            self.again_at = now + again_s * self.factor

    def asked(self, now: float, again_s: float) -> None:
        self.is_asked = self.is_silent = True
        self.question += 1
        self.again_at = now + again_s * self.factor
        self.factor = min(2 * self.factor, _BACKOFF_MAX)

    def has_lost_records(self, answer: LifeAnswer) -> bool:
        """Whether its copy lacks what it acknowledged to this process, though no other writer came
        in between."""
        if answer.copy != self.copy or not self.acked:
            return False
        before = answer.life if answer.life == self.acked_in else answer.promised_before
        return before < self.acked_in or (before == self.acked_in and answer.last < self.acked)

    def answered(self, answer: LifeAnswer) -> None:
        if self.copy != answer.copy:
            self.copy, self.acked, self.told, self.confirmed = answer.copy, 0, 0, 0
            self.acked_in = NO_LIFE
        self.answer = answer
        self.is_silent = False
        self.is_asked = False
        self.again_at = None
        self._nothing_in_flight()
        self.reading = 0

    def lose(self) -> None:
        """Its copy is lost."""
        self.answer = self.copy = None
        self.acked = self.told = 0

    def continue_at(self, tick: int, *, needs_rows: bool = False) -> None:
        self.next = tick
        self.rows_at = (0, "") if needs_rows else None
        # Not before the copy says that it is there.
        self._is_page_out = needs_rows
        self._is_new = needs_rows

    def send_page(self, at: tuple[int, str], again_at: float, *, is_last: bool) -> int:
        """A page of rows goes out; the next one begins at this place. Returns its number."""
        self.rows_at = at
        self.page += 1
        self.is_last_page = is_last
        self._is_page_out = True
        self.again_at = again_at
        return self.page

    @property
    def page_is_due(self) -> bool:
        """Whether a page of rows is on its way."""
        return self._is_page_out

    def page_kept(self) -> None:
        self._is_page_out = False
        self.again_at = None
        if self.is_last_page:
            self.rows_at = None

    def has_confirmed(self, tick: int) -> None:
        self.confirmed = max(self.confirmed, tick)

    def read(self, request: int) -> None:
        self.reading = request

    def sent(self, now: float, last: int, size: int, confirmed: int, again_s: float) -> None:
        self.told, self.tell_at = confirmed, None
        if size:
            self.in_flight.append((last, size))
            self.window_bytes += size
            self.next = last + 1
            if self.again_at is None:
                self.again_at = now + again_s * self.factor

    def kept(self, now: float, life: Life, tick: int, again_s: float) -> None:
        if tick > self.acked:
            self.acked, self.acked_in = tick, life
            self.factor, self.lacked = 1, 0
            self.again_at = now + again_s
        while self.in_flight and self.in_flight[0][0] <= tick:
            self.window_bytes -= self.in_flight.popleft()[1]
        if self._is_new:
            self._is_new = self._is_page_out = False
        if not self.in_flight and not self._is_page_out:
            self.again_at = None

    def expect(self, at: float) -> None:
        """It owes an answer, and is asked again at this time."""
        self.again_at = at

    def tell_later(self, at: float) -> None:
        self.tell_at = at


class RecentRecords:
    """The newest records of the own log: all unsynced ones, and some synced ones."""

    __slots__ = ("_dropped", "_records", "_size", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        #: The first `_dropped` of these are not kept any more: a list is cut now and then, since
        #: the middle of a deque is slow to reach.
        self._records: list[bytes] = []
        self._dropped = 0
        self._size = 0

    def append(self, record: bytes) -> None:
        self._records.append(record)
        self._size += len(record)

    def trim(self, synced: int) -> None:
        while self._size > RECENT_BYTES_MAX and self.first <= synced:
            self._size -= len(self._records[self._dropped])
            self._records[self._dropped] = b""
            self._dropped += 1
            self.first += 1
        if self._dropped * 2 > len(self._records):
            del self._records[: self._dropped]
            self._dropped = 0

    def portion(self, first: int) -> list[bytes]:
        """Records from this tick on, as many as one frame takes."""
        found: list[bytes] = []
        size = 0
        place = self._dropped + first - self.first
        for record in self._records[place : place + FRAME_TICKS]:
            size += len(record)
            if found and size > FRAME_BYTES:
                break
            found.append(record)
        return found
