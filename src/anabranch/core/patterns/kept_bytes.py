"""The bytes that all detectors of one broker keep, and who has to stop when they are too many.

A detector keeps events for as long as its window lasts, with their payloads. `pattern_events_max`
bounds their number for each detector; this bounds their bytes for all of them. Rules:

1. Beyond two thirds of the bound a detector gets no more room once it keeps an equal part of the
   last third. So detectors that keep little go on, and all of them together stay within the bound,
   but for one event.
2. A detector that is stopped gives back what it kept.

An event counts with its payload and with an estimate of what its attributes take when decoded.
State: counts. Lost with the detectors, and rebuilt with them.
"""

from anabranch.model.pattern.match import PlacedEvent

#: What an event takes beside its body, and each of its attributes, roughly.
_EVENT_BYTES = 512
_ATTRIBUTE_BYTES = 128


class KeptBytes:
    """What is kept at one broker. See the rules at the top of this module."""

    __slots__ = ("_bytes_max", "_detectors", "_shared_max", "used")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: As long as no more than this is kept, there is room for everybody.
        self._shared_max = bytes_max * 2 // 3
        self._detectors = 0
        self.used = 0

    def begin(self) -> None:
        """There is one detector more."""
        self._detectors += 1

    def end(self, kept_bytes: int) -> None:
        """There is one less, and this is what it kept."""
        self._detectors -= 1
        self.used -= kept_bytes
        assert self.used >= 0, "more was given back than was kept"
        assert self._detectors >= 0, "more detectors ended than began"

    def has_room_for(self, kept_bytes: int) -> bool:
        """Whether a detector that keeps this much may keep another event."""
        if self.used < self._shared_max:
            return True
        last_third = self._bytes_max - self._shared_max
        return kept_bytes < last_third // max(self._detectors, 1)


def size_of(event: PlacedEvent) -> int:
    """What an event takes, roughly."""
    attributes = event.attributes
    text = sum([len(value) for value in attributes.values() if isinstance(value, str)])
    return _EVENT_BYTES + _ATTRIBUTE_BYTES * len(attributes) + text + len(event.body)
