"""A cache of parsed filters, advertisements and patterns, filled by another thread.

Parsing a long text takes long and cannot be interrupted. A worker thread therefore parses it first,
and the consumer finds the result, or the error, in this cache. Rules:

1. The cache is an optimization only: a missing text is parsed where it is needed, with the same
   outcome.
2. The most recently stored results of all kinds stay, up to `READ_AHEAD_BYTES_MAX` by their
   estimates, and at least those of the last frame (`keep_together`).
3. The `Reading` of a text holds its result and may store it again.

State: bounded, see above. Safe to lose. Thread-safe.
"""

from collections.abc import Callable, Hashable, Iterable
from itertools import count
from threading import Lock
from typing import Any, Generic, TypeVar, cast

Made = TypeVar("Made")
Key = TypeVar("Key", bound=Hashable)

#: The limit on cached results, by the estimate of `normal.memory_cost`, which also includes the
#: index entries that do not exist yet.
READ_AHEAD_BYTES_MAX = 64 * 1024 * 1024
#: The limit on texts whose results are held by requests that wait for something else. A result may
#: take a hundred times as much memory as its text.
READ_AHEAD_CHARACTERS_MAX = 1 << 18
#: The estimated size of the error for a text that cannot be parsed.
FAILURE_BYTES = 1_024

_lock = Lock()
#: Kind and key → the size, the result, and the frame it was stored for; oldest first.
_made: dict[tuple[str, Hashable], tuple[int, object, int]] = {}
#: Numbers the frames.
_frames = count(1)


class ReadAhead(Generic[Key, Made]):
    """Cached results of one kind. See the rules at the top of this module."""

    __slots__ = ("_kind",)

    #: The total size of all kinds.
    _bytes = 0

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __contains__(self, key: Key) -> bool:
        return (self._kind, key) in _made

    def find(self, key: Key) -> Made | None:
        found = _made.get((self._kind, key)) if _made else None
        return None if found is None else cast("Made", found[1])

    def keep(self, key: Key, size: int, made: Made, frame: int) -> None:
        """Store a result of `size` bytes as the newest, and evict the oldest beyond the limit."""
        with _lock:
            _forget((self._kind, key))
            _made[self._kind, key] = (size, made, frame)
            ReadAhead._bytes += size
            while ReadAhead._bytes > READ_AHEAD_BYTES_MAX:
                oldest = next(iter(_made))
                if _made[oldest][2] == frame:
                    break
                _forget(oldest)


def _forget(key: tuple[str, Hashable]) -> None:
    ReadAhead._bytes -= _made.pop(key, (0, None, 0))[0]


def forget_all() -> None:
    with _lock:
        _made.clear()
        ReadAhead._bytes = 0


class Reading(Generic[Key, Made]):
    """A text that may be parsed ahead of its use."""

    __slots__ = ("_key", "_made", "_make", "_size", "_store", "characters")

    def __init__(
        self,
        store: ReadAhead[Key, Made],
        key: Key,
        text: str,
        make: Callable[[], tuple[Made, int]],
    ) -> None:
        """`make` parses the text and returns the result with its size; it returns errors and raises
        none.
        """
        self._store = store
        self._key = key
        self._make = make
        self._made: Made | None = None
        self._size = 0
        self.characters = len(text)

    @property
    def is_made(self) -> bool:
        return self._key in self._store

    def read(self) -> None:
        """Parse the text, in any thread, and hold the result."""
        self._made, self._size = self._make()

    def keep(self, frame: int = 0) -> None:
        if self._made is not None:
            self._store.keep(self._key, self._size, self._made, frame or next(_frames))


def keep_together(readings: "Iterable[Reading[Any, Any]]") -> None:
    """Store the results of one frame, so that none of them evicts another."""
    frame = next(_frames)
    for reading in readings:
        reading.keep(frame)
