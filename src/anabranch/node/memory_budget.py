"""What clients make one node hold in memory, and what happens beyond the bound.

Every session has an *account*: bytes that have arrived of a frame that is not complete, frames that
wait for the matching index, and bytes that wait to be written. All accounts together may come to
`clients_bytes_max` (`model.limits`). Rules:

1. Beyond the bound the sessions that hold most are cut, largest first, until an eighth of the bound
   is free. Each is told how much it held and what the bound is. Sessions that hold little are never
   cut for what others hold.
2. A session that is cut counts until its connection is over, because what waits to be written stays
   for a while. Such connections may hold a quarter of the bound; beyond it they are ended at once,
   largest first, and these clients do not learn why.
3. While more is held than the bound, nobody is let in, and questions about the log are refused.
4. A frame has to be complete `frame_s` after it began, however large it is. A frame that is not is
   noticed within half of that time more. Time during which the broker itself does not read does not
   count. A session that takes longer is cut, and told.
5. Counting costs the same however many sessions there are. A connection does not tell when it has
   written something, so accounts may be too high; they are measured again before anybody is cut,
   after every 64th of the bound at most, and four times in `frame_s`.
6. TLS costs up to `TLS_BYTES` for each session beside its account, whatever is sent. All of it
   together may come to `tls_bytes_max`; beyond that clients with TLS are refused, and told the
   limit. Nobody is cut for it. (Before a session begins `greetings_max` bounds it.)
7. Freed memory goes back to the system: the allocator of glibc keeps what was freed between blocks
   that are in use, so it is asked to return that after clients held `_TRIM_BYTES` more than now,
   every `_TRIM_S` at most.

Links are counted for `/status`, and never cut for this.

State: the accounts, worth nothing after a crash.

Prior art: RabbitMQ's memory high watermark, which blocks publishers; NATS cuts slow consumers.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from anabranch.model.limits import Limits, clients_bytes_max, tls_bytes_max
from anabranch.node.memory_tuning import give_back
from anabranch.node.metrics import NodeCounters
from anabranch.wire.tls_transport import TLS_BYTES
from anabranch.wire.transport import Connection

#: Of the bound: free after a cut; held by connections that are ending; between two measurements.
_FREE, _ENDING, _MEASURED = 8, 4, 64
#: Looks at frames that are not complete, in the time that a frame has.
_LOOKS = 4
#: What clients have held more than now, and the time between two trims.
_TRIM_BYTES = 16 * 1024 * 1024
_TRIM_S = 10.0


class Holder(Protocol):
    """A session, as it is seen from here."""

    connection: Connection
    #: Whether it was cut, and only its connection is left.
    is_over: bool

    def cut(self, reason: str) -> None:
        """End the session."""


class Account:
    """What one session holds. It counts for the session's connection as its `Meter`."""

    __slots__ = ("_budget", "_frames", "_since_s", "_tls_bytes", "bytes", "holder")

    def __init__(self, budget: "MemoryBudget", holder: Holder) -> None:
        self._budget = budget
        #: None after the end, so that no reference cycle is left.
        self.holder: Holder | None = holder
        self.bytes = 0
        #: What its TLS costs; not part of `bytes`.
        self._tls_bytes = 0 if holder.connection.tls is None else TLS_BYTES
        budget.tls_bytes += self._tls_bytes
        #: Complete frames when an incomplete one was seen first, and when that was.
        self._frames = -1
        self._since_s = 0.0

    def changed(self, by: int) -> None:
        """The session holds this many bytes more, or less."""
        was, budget = self.bytes, self._budget
        self.bytes = now = was + by
        assert now >= 0, "an account is below 0"
        if by < 0:
            budget.falls()
        budget.used_bytes += by
        if not was:
            budget.opened(self)
        elif not now:
            budget.settled(self)
        if budget.used_bytes > budget.look_at_bytes:
            budget.look()

    def close(self) -> None:
        """The connection is over, and holds nothing."""
        if self.bytes:
            self.changed(-self.bytes)
        self.holder = None
        if self._tls_bytes:
            self._budget.falls()
            self._budget.tls_bytes -= self._tls_bytes
            self._tls_bytes = 0
            self._budget.fell()

    def is_late(self, now_s: float, frame_s: float) -> bool:
        """Whether the frame that is arriving has taken too long (rule 4)."""
        assert self.holder is not None
        connection = self.holder.connection
        is_waiting = connection.pending_bytes > 0 and not connection.is_deaf
        if not is_waiting or connection.frames_received != self._frames:
            self._frames = connection.frames_received if is_waiting else -1
            self._since_s = now_s
        return now_s - self._since_s >= frame_s


class MemoryBudget:
    """All accounts of a node. See the rules at the top of this module."""

    def __init__(self, limits: Limits, frame_s: float, counters: NodeCounters) -> None:
        self.bytes_max = clients_bytes_max(limits)
        self._frame_s = frame_s
        self._counters = counters
        self.used_bytes = 0
        self.tls_bytes_max = tls_bytes_max(limits)
        #: What TLS of all sessions costs (rule 6).
        self.tls_bytes = 0
        #: When this is exceeded, accounts are measured.
        self.look_at_bytes = self.bytes_max
        #: Accounts that are not empty, in the order in which they came to be so.
        self._debtors: dict[Account, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_looking = False
        #: The most that was held since memory was given back, and when that was.
        self._high_bytes = 0
        self._trimmed_s = 0.0
        self._trim: asyncio.TimerHandle | None = None

    def account(self, holder: Holder) -> Account:
        """A new account, for a session that begins."""
        account = Account(self, holder)
        holder.connection.meter(account)
        return account

    def opened(self, account: Account) -> None:
        """An account is not empty any more."""
        self._debtors[account] = None
        if self._timer is None:
            self._wait()

    def settled(self, account: Account) -> None:
        """An account is empty."""
        self._debtors.pop(account, None)
        self.fell()

    def falls(self) -> None:
        """Less will be held in a moment."""
        self._high_bytes = max(self._high_bytes, self.used_bytes + self.tls_bytes)

    def fell(self) -> None:
        """Less is held now: give memory back soon if it is much less (rule 7)."""
        held_bytes = self.used_bytes + self.tls_bytes
        if self._trim is None and self._high_bytes - held_bytes > _TRIM_BYTES:
            loop = asyncio.get_running_loop()
            pause_s = max(self._trimmed_s + _TRIM_S - loop.time(), 0.0)
            self._trim = loop.call_later(pause_s, self._give_back)

    def why_not(self) -> str:
        """Why no further work is taken (rule 3); "" if it is."""
        if self.used_bytes <= self.bytes_max:
            return ""
        self._measure()
        if self.used_bytes <= self.bytes_max:
            return ""
        held = f"clients hold {self.used_bytes} bytes of memory here, and may hold {self.bytes_max}"
        return f"{held} (a share of memory_bytes_max); try again later"

    def why_not_in(self, connection: Connection) -> str:
        """Why the client on this connection is refused (rules 3 and 6); "" if it is not."""
        if connection.tls is not None and self.tls_bytes + TLS_BYTES > self.tls_bytes_max:
            count = self.tls_bytes // TLS_BYTES
            return (
                f"this broker has {count} clients with TLS, which may take {self.tls_bytes_max}"
                " bytes of memory (a share of memory_bytes_max); try another broker, or raise"
                " memory_bytes_max"
            )
        return self.why_not()

    def measured_bytes(self) -> int:
        """What clients hold now."""
        self._measure()
        return self.used_bytes

    def close(self) -> None:
        """Look at nothing any more."""
        for timer in (self._timer, self._trim):
            if timer is not None:
                timer.cancel()
        self._timer = self._trim = None

    # -- too much -------------------------------------------------------------------------------

    def _measure(self) -> None:
        was, self._is_looking = self._is_looking, True
        for account in list(self._debtors):
            if account.holder is not None:
                account.holder.connection.measure()
        self._is_looking = was
        self._look_later()

    def _look_later(self) -> None:
        self.look_at_bytes = max(self.bytes_max, self.used_bytes + self.bytes_max // _MEASURED)

    def look(self) -> None:
        """More may be held than the bound."""
        if self._is_looking:
            return
        self._is_looking = True
        try:
            self._measure()
            if self.used_bytes > self.bytes_max:
                self._cut_largest()
            self._end_largest()
        finally:
            self._is_looking = False
            self._look_later()

    def _cut_largest(self) -> None:
        target = self.bytes_max - self.bytes_max // _FREE
        ending = sum(account.bytes for account, _ in self._by_size(lambda holder: holder.is_over))
        for account, holder in self._by_size(lambda holder: not holder.is_over):
            if self.used_bytes - ending <= target:
                break
            self._counters.memory_cuts += 1
            holder.cut(
                f"this session holds {account.bytes} bytes of the broker's memory, more than any"
                f" other, and all clients together {self.used_bytes} where {self.bytes_max} are"
                " allowed (a share of memory_bytes_max); read what is sent, and send smaller frames"
            )
            # What waits to be written stays until the connection is over.
            ending += account.bytes

    def _end_largest(self) -> None:
        over = self._by_size(lambda holder: holder.is_over)
        ending = sum(account.bytes for account, _ in over)
        for account, holder in over:
            if ending <= self.bytes_max // _ENDING:
                break
            ending -= account.bytes
            holder.connection.cut("it holds memory that others need")

    def _by_size(self, is_meant: Callable[[Holder], bool]) -> list[tuple[Account, Holder]]:
        """Accounts and their holders, largest first."""
        every = [(account, account.holder) for account in self._debtors]
        meant = [(account, holder) for account, holder in every if holder and is_meant(holder)]
        return sorted(meant, key=lambda each: -each[0].bytes)

    def _give_back(self) -> None:
        self._trim = None
        self._trimmed_s = asyncio.get_running_loop().time()
        self._high_bytes = self.used_bytes + self.tls_bytes
        give_back()

    # -- too long -------------------------------------------------------------------------------

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._frame_s / _LOOKS, self._look_old)

    def _look_old(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        self._measure()
        for account in list(self._debtors):
            holder = account.holder
            if holder is None or holder.is_over:
                continue
            if account.is_late(now_s, self._frame_s):
                pending = holder.connection.pending_bytes
                self._counters.frames_late += 1
                holder.cut(
                    f"a frame was not complete within {self._frame_s:g} s (frame_s): {pending}"
                    " bytes of it have arrived; send smaller frames, or raise frame_s"
                )
        if self._debtors:
            self._wait()
