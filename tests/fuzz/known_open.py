"""What the fuzzer leaves out on purpose, and why: the one place to look before it is believed.

A frame that an entry names is drawn, and not sent. An entry ends when what it names is mended: take
it out, and the fuzzer covers it. ANABRANCH_FUZZ_ALL=1 sends everything, for showing that the fuzzer
finds what an entry names.
"""

import os
from collections.abc import Callable, Iterable

import msgspec

from tests.fuzz.symbols import Memory, resolved

Names = Callable[[msgspec.Struct], bool]

#: What is known → which frames are left out for it.
KNOWN_OPEN: dict[str, Names] = {}


def said(frames: Iterable[msgspec.Struct], memory: Memory) -> list[msgspec.Struct]:
    """What a hostile party sends of these: all of them, but for what is known."""
    made = [resolved(frame, memory) for frame in frames]
    if os.environ.get("ANABRANCH_FUZZ_ALL"):
        return made
    return [each for each in made if not any(names(each) for names in KNOWN_OPEN.values())]
