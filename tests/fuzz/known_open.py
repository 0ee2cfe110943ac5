"""What the fuzzer leaves out on purpose, and why: the one place to look before it is believed.

A frame that an entry names is drawn, and not sent. An entry ends when what it names is mended: take
it out, and the fuzzer covers it. ANABRANCH_FUZZ_ALL=1 sends everything, for showing that the fuzzer
finds what an entry names.
"""

import os
from collections.abc import Callable, Iterable

import msgspec

from anabranch.model.client_frames import Define
from tests.fuzz.symbols import Memory, resolved

Names = Callable[[msgspec.Struct], bool]


def _contradicts_itself(frame: msgspec.Struct) -> bool:
    return isinstance(frame, Define) and frame.is_new and frame.must_exist


#: What is known → which frames are left out for it.
KNOWN_OPEN: dict[str, Names] = {
    # The broker stores a pattern that it cannot parse, fails, and fails at every start.
    "a pattern that is new and must exist is stored unread": _contradicts_itself,
}


def said(frames: Iterable[msgspec.Struct], memory: Memory) -> list[msgspec.Struct]:
    """What a hostile party sends of these: all of them, but for what is known."""
    made = [resolved(frame, memory) for frame in frames]
    if os.environ.get("ANABRANCH_FUZZ_ALL"):
        return made
    return [each for each in made if not any(names(each) for names in KNOWN_OPEN.values())]
