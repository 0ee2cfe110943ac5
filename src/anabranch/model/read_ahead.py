"""What was read ahead of its use: filters, advertisements and patterns, by their texts.

To read a long text takes long and cannot be interrupted. So another thread does it first, and
whoever wants the result finds it made, or finds the error that there is with the text. Rules:

1. It is for speed only: what is not found here is read where it is wanted, with the same outcome.
2. Of the results of all kinds those stay that were kept last, `READ_AHEAD_BYTES_MAX` of them by
   their estimates, and at least those of the last frame (`keep_together`).
3. Whoever read a text holds the result (`Reading`), and may keep it once more.

State: bounded, see above. Safe to lose. Several threads may use it at once.
"""

from collections.abc import Callable, Hashable, Iterable
from itertools import count
from threading import Lock
from typing import Any, Generic, TypeVar, cast

Made = TypeVar("Made")
Key = TypeVar("Key", bound=Hashable)

#: What the results that are kept may take, by the estimate of `normal.memory_cost`; that counts
#: indexes too, which these are not in yet.
READ_AHEAD_BYTES_MAX = 64 * 1024 * 1024
#: Of texts whose results are held by those that wait for something else. A result may take a
#: hundred times as much memory as its text.
READ_AHEAD_CHARACTERS_MAX = 1 << 18
#: What a text that cannot be read is kept for.
FAILURE_BYTES = 1_024

_lock = Lock()
#: Kind and key → the bytes of a result, the result, and the frame it was kept for; the oldest
#: first.
_made: dict[tuple[str, Hashable], tuple[int, object, int]] = {}
#: Frames are numbered.
_frames = count(1)


class ReadAhead(Generic[Key, Made]):
    """Results of one kind. See the rules at the top of this module."""

    __slots__ = ("_kind",)

    #: Of all kinds together.
    _bytes = 0

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __contains__(self, key: Key) -> bool:
        return (self._kind, key) in _made

    def find(self, key: Key) -> Made | None:
        """What was made; None if nothing was, or it is gone."""
        found = _made.get((self._kind, key)) if _made else None
        return None if found is None else cast("Made", found[1])

    def keep(self, key: Key, size: int, made: Made, frame: int) -> None:
        """Keep what was made, of so many bytes, as the newest."""
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
    """Keep nothing any more."""
    with _lock:
        _made.clear()
        ReadAhead._bytes = 0


class Reading(Generic[Key, Made]):
    """One text that may be read ahead."""

    __slots__ = ("_key", "_made", "_make", "_size", "_store", "characters")

    def __init__(
        self,
        store: ReadAhead[Key, Made],
        key: Key,
        text: str,
        make: Callable[[], tuple[Made, int]],
    ) -> None:
        """`make` reads the text, and says how many bytes the result takes; it returns errors, and
        raises none."""
        self._store = store
        self._key = key
        self._make = make
        self._made: Made | None = None
        self._size = 0
        self.characters = len(text)

    @property
    def is_made(self) -> bool:
        """Whether whoever wants the result finds it now."""
        return self._key in self._store

    def read(self) -> None:
        """Read the text, in whatever thread, and hold what was made."""
        self._made, self._size = self._make()

    def keep(self, frame: int = 0) -> None:
        """Let whoever wants it find what was made, for a while from now on."""
        if self._made is not None:
            self._store.keep(self._key, self._size, self._made, frame or next(_frames))


def keep_together(readings: "Iterable[Reading[Any, Any]]") -> None:
    """Keep what was made for one frame: nothing of it pushes out the rest."""
    frame = next(_frames)
    for each in readings:
        each.keep(frame)
