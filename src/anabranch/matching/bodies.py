"""Many encoded events at once, as an engine searches them: without decoding any.

A broker that passes events on, or looks for those who want them, has them as the bytes they were
published in. All of a frame are asked about in one call, and what the kernels cannot read, or
leave in doubt, is answered with None: whoever asked decodes that one and asks about it alone.

This module keeps no state.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anabranch.model.limits import Limits


class Bodies(NamedTuple):
    """Encoded events, one after the other, with where each ends; and what each may be."""

    joined: NDArray[np.uint8]
    stops: NDArray[np.int64]
    limits: Limits


def bodies_of(events: Sequence[bytes], limits: Limits) -> Bodies:
    """These events, as an engine takes them."""
    sizes = np.fromiter(map(len, events), np.int64, len(events))
    # An array needs a byte, even if no event has one.
    return Bodies(np.frombuffer(b"".join(events) or b"\0", np.uint8), sizes.cumsum(), limits)


def cut(ids: Sequence[Hashable], ends: Sequence[int]) -> list[Sequence[Hashable] | None]:
    """The ids of each event, of all that were found in order; an end of -1 says nothing."""
    answers: list[Sequence[Hashable] | None] = []
    start = 0
    for end in ends:
        if end < 0:
            answers.append(None)
        else:
            answers.append(ids[start:end])
            start = end
    return answers
