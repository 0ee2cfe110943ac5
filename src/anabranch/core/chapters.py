"""Chapters: how old and how large the parts of a log are, for logs that are long.

A limit of age or of bytes has to know where the log is too old or too large, though most of it is
on disk only. Nothing is kept per tick: neighbouring ticks form a *chapter*, with its last tick, the
time of that, and its bytes. Rules:

1. A chapter is closed once it spans a 64th of the age limit, of the time for which ticks are kept,
   or of the bytes that are allowed. So there are some hundreds of them at most, however long the
   log, if what is too old is forgotten.
2. Age goes by chapters: a tick is too old when the last tick of its chapter is. That is never too
   early, and at most a 64th of the limit too late.
3. Bytes are those of records. A chapter of which a part is forgotten counts as a whole until all of
   it is: never too little, and at most a 64th of the limit too much.
4. *Seen* is when this life first knew of a tick: when it was made, or, for one that a restart found
   with a time that is yet to come, the restart. So a clock that went back delays what is forgotten
   by no more than the limit itself, and nothing is forgotten earlier for it.

State: in the checkpoint, and built from the records after it when a broker starts.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

_PARTS = 64
_NEVER = float("inf")


class Chapter(msgspec.Struct, array_like=True, gc=False):
    """Some neighbouring ticks."""

    #: When its first, and when its last tick was seen.
    began_s: float
    seen_s: float
    last: int = 0
    size: int = 0


class Chapters:
    """The ages and sizes of one log. See the rules at the top of this module."""

    __slots__ = ("_age_s_max", "_bytes_part", "_chapters", "_span_s", "size")

    def __init__(self, age_s_max: float | None, bytes_max: int, keep_s: float = 0.0) -> None:
        self._age_s_max = age_s_max
        self._span_s = min(age_s_max or _NEVER, keep_s or _NEVER) / _PARTS
        self._bytes_part = bytes_max // _PARTS
        #: Oldest first.
        self._chapters: deque[Chapter] = deque()
        #: Bytes of all of them.
        self.size = 0

    def __len__(self) -> int:
        return len(self._chapters)

    def add(self, tick: int, size: int, seen_s: float) -> None:
        """The next tick, with the bytes of its record."""
        chapters = self._chapters
        last = chapters[-1] if chapters else None
        if last is None or last.size >= self._bytes_part or seen_s - last.began_s >= self._span_s:
            last = Chapter(seen_s, seen_s)
            chapters.append(last)
        last.last = tick
        last.seen_s = seen_s
        last.size += size
        self.size += size

    def restore(self, chapters: Iterable[Chapter], now: float) -> None:
        """What a checkpoint kept; before anything is added."""
        for each in chapters:
            began_s, seen_s = min(each.began_s, now), min(each.seen_s, now)
            self._chapters.append(Chapter(began_s, seen_s, each.last, each.size))
            self.size += each.size

    def up_to(self, tick: int) -> tuple[Chapter, ...]:
        """What there is up to a tick, oldest first; one that goes on beyond it counts whole."""
        found = []
        began_after = 0
        for each in self._chapters:
            if began_after < tick:
                found.append(Chapter(each.began_s, each.seen_s, min(each.last, tick), each.size))
            began_after = each.last
        return tuple(found)

    def forget(self, tick: int) -> None:
        """The log begins after this tick."""
        chapters = self._chapters
        while chapters and chapters[0].last <= tick:
            self.size -= chapters.popleft().size

    def old_at(self, synced: int) -> float | None:
        """When the oldest chapter will be too old; None if none will, or it is not all synced."""
        if self._age_s_max is None:
            return None
        return self.aged_at(self._age_s_max, synced)

    def aged_at(self, age_s: float, synced: int) -> float | None:
        """When the oldest chapter will be of this age; None if there is none that is all synced."""
        if not self._chapters or self._chapters[0].last > synced:
            return None
        return self._chapters[0].seen_s + age_s

    def too_old(self, now: float, synced: int) -> int:
        """The newest synced tick that is too old; 0 if there is none."""
        return 0 if self._age_s_max is None else self.aged(self._age_s_max, now, synced)

    def aged(self, age_s: float, now: float, synced: int) -> int:
        """The newest synced tick of this age; 0 if there is none."""
        found = 0
        for chapter in self._chapters:
            if chapter.last > synced or chapter.seen_s + age_s > now:
                break
            found = chapter.last
        return found

    def beyond(self, bytes_max: int) -> int:
        """The tick up to which to forget so that at most so many bytes stay; 0 if they do."""
        size, found = self.size, 0
        for chapter in self._chapters:
            if size <= bytes_max:
                break
            size -= chapter.size
            found = chapter.last
        return found
