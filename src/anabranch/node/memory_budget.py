"""The memory budget of clients: what their sessions may make one node hold.

Every session has an *account*: bytes of an incomplete frame, frames that wait for the matching
index, and bytes queued for sending. The sum of all accounts may reach `clients_bytes_max`
(`model.limits`). Rules:

1. Beyond the limit the sessions that hold most are closed, largest first, until an eighth of the
   limit is free. Each gets a reason with the bytes it held and the limit. Sessions that hold little
   are never closed because of others.
2. A closed session counts until its connection has ended, because queued bytes remain for a while.
   Such connections may hold a quarter of the limit; beyond that they are aborted, largest first,
   and their clients do not get the reason.
3. While the limit is exceeded, new clients and requests about the log are refused.
4. A frame must be complete within `frame_s`, regardless of its size. A late frame is detected at
   most half of that time later. Time in which the broker itself does not read does not count. The
   session of a late frame is closed with a reason.
5. Accounting costs the same for any number of sessions. A connection does not report when it has
   sent bytes, so accounts may be too high. They are measured again before a session is closed,
   after every 64th of the limit at most, and four times per `frame_s`.
6. TLS costs up to `TLS_BYTES` per session in addition, regardless of its traffic. The total may
   reach `tls_bytes_max`; beyond that, clients with TLS are refused with a reason that names the
   limit. No session is closed because of it. (Before a session starts, `greetings_max` bounds it.)
7. Freed memory returns to the system: glibc's allocator retains freed memory between blocks in use,
   so it is trimmed after clients held `_TRIM_BYTES` more than now, at most every `_TRIM_S`.

The memory of links is reported in `/status` but has no limit here.

State: the accounts; worthless after a crash.

Prior art: RabbitMQ's memory high watermark, which blocks publishers; NATS closes slow consumers.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from anabranch.model.limits import Limits, clients_bytes_max, tls_bytes_max
from anabranch.node.memory_tuning import give_back
from anabranch.node.metrics import NodeCounters
from anabranch.wire.tls_transport import TLS_BYTES
from anabranch.wire.transport import Connection

#: Fractions of the limit: free after a cut; held by ending connections; between measurements.
_FREE, _ENDING, _MEASURED = 8, 4, 64
#: Checks for late frames per `frame_s`.
_CHECKS = 4
#: Decrease of held memory that triggers a trim, and the time between trims.
_TRIM_BYTES = 16 * 1024 * 1024
_TRIM_S = 10.0


class Holder(Protocol):
    """A session as seen by the budget."""

    connection: Connection
    #: Whether the session was cut and only its connection is left.
    is_over: bool

    def cut(self, reason: str) -> None: ...


class Account:
    """The memory that one session holds. It serves as the `Meter` of the session's connection."""

    __slots__ = ("_budget", "_frames", "_since_s", "_tls_bytes", "bytes", "holder")

    def __init__(self, budget: "MemoryBudget", holder: Holder) -> None:
        self._budget = budget
        #: None after the end, to avoid a reference cycle.
        self.holder: Holder | None = holder
        self.bytes = 0
        #: Cost of its TLS; not part of `bytes`.
        self._tls_bytes = 0 if holder.connection.tls is None else TLS_BYTES
        budget.tls_bytes += self._tls_bytes
        #: Number of complete frames when an incomplete one was first seen, and the time of that.
        self._frames = -1
        self._since_s = 0.0

    def changed(self, by: int) -> None:
        """Add or subtract held bytes."""
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
        """The connection has ended and holds nothing."""
        if self.bytes:
            self.changed(-self.bytes)
        self.holder = None
        if self._tls_bytes:
            self._budget.falls()
            self._budget.tls_bytes -= self._tls_bytes
            self._tls_bytes = 0
            self._budget.fell()

    def is_late(self, now_s: float, frame_s: float) -> bool:
        """Whether the incoming frame has taken too long (rule 4)."""
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
        #: Cost of TLS of all sessions (rule 6).
        self.tls_bytes = 0
        #: Accounts are measured when this is exceeded.
        self.look_at_bytes = self.bytes_max
        #: Accounts that are not empty, in the order in which they became so.
        self._non_empty: dict[Account, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_looking = False
        #: The most bytes held since the last trim, and the time of that trim.
        self._high_bytes = 0
        self._trimmed_s = 0.0
        self._trim: asyncio.TimerHandle | None = None

    def account(self, holder: Holder) -> Account:
        """Open an account for a new session."""
        account = Account(self, holder)
        holder.connection.meter(account)
        return account

    def opened(self, account: Account) -> None:
        """An account is no longer empty."""
        self._non_empty[account] = None
        if self._timer is None:
            self._wait()

    def settled(self, account: Account) -> None:
        """An account has become empty."""
        self._non_empty.pop(account, None)
        self.fell()

    def falls(self) -> None:
        """Record the high-water mark before the held memory decreases."""
        self._high_bytes = max(self._high_bytes, self.used_bytes + self.tls_bytes)

    def fell(self) -> None:
        """The held memory has decreased: schedule a trim if it is much less (rule 7)."""
        held_bytes = self.used_bytes + self.tls_bytes
        if self._trim is None and self._high_bytes - held_bytes > _TRIM_BYTES:
            loop = asyncio.get_running_loop()
            pause_s = max(self._trimmed_s + _TRIM_S - loop.time(), 0.0)
            self._trim = loop.call_later(pause_s, self._give_back)

    def why_not(self) -> str:
        """Why to refuse further work (rule 3); "" to accept it."""
        if self.used_bytes <= self.bytes_max:
            return ""
        self._measure()
        if self.used_bytes <= self.bytes_max:
            return ""
        held = f"clients hold {self.used_bytes} bytes of memory here, limit {self.bytes_max}"
        return f"{held} (a share of memory_bytes_max); try again later"

    def why_not_in(self, connection: Connection) -> str:
        """Why to refuse the client on this connection (rules 3 and 6); "" to accept it."""
        if connection.tls is not None and self.tls_bytes + TLS_BYTES > self.tls_bytes_max:
            count = self.tls_bytes // TLS_BYTES
            return (
                f"this broker has {count} clients with TLS, whose memory is limited to"
                f" {self.tls_bytes_max} bytes (a share of memory_bytes_max); try another broker, or"
                " raise memory_bytes_max"
            )
        return self.why_not()

    def measured_bytes(self) -> int:
        """Bytes that clients hold now."""
        self._measure()
        return self.used_bytes

    def close(self) -> None:
        """Cancel all timers."""
        for timer in (self._timer, self._trim):
            if timer is not None:
                timer.cancel()
        self._timer = self._trim = None

    # -- limit exceeded -------------------------------------------------------------------------

    def _measure(self) -> None:
        was, self._is_looking = self._is_looking, True
        for account in list(self._non_empty):
            if account.holder is not None:
                account.holder.connection.measure()
        self._is_looking = was
        self._look_later()

    def _look_later(self) -> None:
        self.look_at_bytes = max(self.bytes_max, self.used_bytes + self.bytes_max // _MEASURED)

    def look(self) -> None:
        """Measure again, and close sessions if the limit is exceeded."""
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
                f" other; all clients together hold {self.used_bytes} and may hold {self.bytes_max}"
                " (a share of memory_bytes_max); read faster, or send smaller frames"
            )
            # Queued bytes remain until the connection has ended.
            ending += account.bytes

    def _end_largest(self) -> None:
        over = self._by_size(lambda holder: holder.is_over)
        ending = sum(account.bytes for account, _ in over)
        for account, holder in over:
            if ending <= self.bytes_max // _ENDING:
                break
            ending -= account.bytes
            holder.connection.cut("its memory is needed for other clients")

    def _by_size(self, is_selected: Callable[[Holder], bool]) -> list[tuple[Account, Holder]]:
        """Accounts and their holders, largest first."""
        holders = [(account, account.holder) for account in self._non_empty]
        found = [(account, holder) for account, holder in holders if holder and is_selected(holder)]
        return sorted(found, key=lambda pair: -pair[0].bytes)

    def _give_back(self) -> None:
        self._trim = None
        self._trimmed_s = asyncio.get_running_loop().time()
        self._high_bytes = self.used_bytes + self.tls_bytes
        give_back()

    # -- late frames ----------------------------------------------------------------------------

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(
            self._frame_s / _CHECKS, self._check_late
        )

    def _check_late(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        self._measure()
        for account in list(self._non_empty):
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
        if self._non_empty:
            self._wait()
