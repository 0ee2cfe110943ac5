"""Group commit: what waits for the disk, in batches.

Whatever is appended or put while a sync is under way waits for the next one. So there is at most
one sync at a time, and under load one sync serves many events: the slower the disk, the larger the
batches. What has to follow from a sync (confirmations, knowledge for the network, deletion) stands
in the batch that it needs, and happens when that batch is synced and not before.

State: what is under way. Safe to lose: whatever was not synced was not promised.
"""

from anabranch.core.asks import CarryTo, SyncPlease
from anabranch.core.publishers import Key


class Batch:
    """What a sync brings about."""

    __slots__ = (
        "confirmed",
        "forget",
        "intended",
        "is_dirty",
        "replies",
        "staged",
        "staged_bytes",
        "tick",
    )

    def __init__(self) -> None:
        #: Whether there is anything to sync.
        self.is_dirty = False
        #: The newest tick in here, 0 if there is none.
        self.tick = 0
        #: Publisher and incarnation → the highest sequence in here.
        self.confirmed: dict[Key, int] = {}
        #: Records up to this tick may be deleted then, 0 if none.
        self.forget = 0
        #: What other brokers are told then, by who they are and what they asked.
        self.replies: dict[tuple[str, int], CarryTo] = {}
        #: Chunks that are safe then, by who staged them: session and request.
        self.staged: list[tuple[int, int]] = []
        #: What those among them take that are new.
        self.staged_bytes = 0
        #: Sinks whose intent is safe then.
        self.intended: list[str] = []


class Commit:
    """The batch under way and the one that gathers. See the top of this module."""

    __slots__ = ("_asked", "_ticket", "gathering")

    def __init__(self) -> None:
        self.gathering = Batch()
        self._asked: Batch | None = None
        self._ticket = 0

    def please(self) -> list[SyncPlease]:
        """Ask for a sync if there is something to sync and none is under way."""
        if self._asked is not None or not self.gathering.is_dirty:
            return []
        self._asked, self.gathering = self.gathering, Batch()
        self._ticket += 1
        return [SyncPlease(self._ticket)]

    def synced(self, ticket: int) -> Batch | None:
        """The batch that this ticket stands for; None if that is an old story."""
        batch = self._asked
        if batch is None or ticket < self._ticket:
            return None
        self._asked = None
        return batch
