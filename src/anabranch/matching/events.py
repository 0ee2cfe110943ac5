"""Events encoded as messages, the input of a search.

A search reads MessagePack (`kernels.read_event`), which msgspec encodes for many events at once, in
a fraction of the time that inspecting each attribute would take. A message does not depend on the
index, so an encoded event stays valid when filters are added or removed.

Rules

1. A value is exactly a str, a 64-bit int, a float or a bool. This is checked here, because msgspec
   encodes a Decimal or a date as text; all other errors appear when the message is written or read,
   and then `plain_event` reports the attribute and the problem.
2. `plain_event` ignores names that are not of type str.
3. A batch of encoded events is searched without decoding any: a broker that forwards events, or
   looks up their subscribers, has them as the bytes they were published in. One call handles a
   whole frame. An event that the kernels cannot read or decide is answered with None; the caller
   decodes that event and matches it alone.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anabranch.model.encoding import Envelope
from anabranch.model.errors import EventError
from anabranch.model.event import INT_MAX, INT_MIN, Attributes, Event, Value
from anabranch.model.limits import Limits

#: What an index is asked about.
Asked = Event | Attributes | Envelope
Plain = dict[str, Value]

_encode = msgspec.msgpack.Encoder().encode
_TYPES = frozenset((str, int, float, bool))
#: What msgspec raises at values and texts that it cannot write.
_REFUSALS = (TypeError, OverflowError, UnicodeEncodeError, RecursionError)


class Events:
    """Encoded events: an array of maps as MessagePack, and the attributes for residues."""

    __slots__ = ("attributes", "message")

    def __init__(self, attributes: list[Plain]) -> None:
        self.attributes = attributes
        self.message = message_of_many(attributes)

    def __len__(self) -> int:
        return len(self.attributes)

    @property
    def start(self) -> int:
        """Where in the message the first event stands: behind the head of the array."""
        return 1 if len(self) < 16 else 3 if len(self) < 1 << 16 else 5

    def plain(self) -> "Events":
        """The same events with nothing but plain names and values."""
        return Events([plain_event(attributes) for attributes in self.attributes])


def message_of(attributes: Plain) -> bytes:
    try:
        if _TYPES.issuperset(map(type, attributes.values())):
            return _encode(attributes)
    except _REFUSALS:
        pass
    return _encode(plain_event(attributes))


def message_of_many(events: list[Plain]) -> bytes:
    try:
        if _TYPES.issuperset(map(type, chain.from_iterable(map(dict.values, events)))):
            return _encode(events)
    except _REFUSALS:
        pass
    return _encode([plain_event(attributes) for attributes in events])


def plain_event(attributes: Attributes) -> Plain:
    """The attributes whose names are texts, or an error that names a bad value."""
    plain: Plain = {}
    for name, value in attributes.items():
        if type(value) not in _TYPES:
            raise EventError(
                f"attribute {name!r} holds a {type(value).__name__};"
                " a value is a str, an int, a float or a bool"
            )
        if type(value) is int and not INT_MIN <= value <= INT_MAX:
            raise EventError(f"attribute {name!r} is an integer that does not fit into 64 bits")
        if isinstance(name, str):
            if not (_is_text(name) and (type(value) is not str or _is_text(value))):
                raise EventError(
                    f"attribute {name!r} has a lone surrogate, which is not valid text"
                )
            plain[str(name)] = value
    return plain


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def attributes_of(event: Asked) -> Attributes:
    if isinstance(event, Event):
        return event.attributes
    if isinstance(event, Mapping):
        return event
    if isinstance(event, Envelope):
        return event.attributes()
    raise EventError(f"expected an Event or a mapping of names to values, not {event!r}")


def own_attributes(event: Asked) -> Plain:
    """The attributes as msgspec takes them: a dict, and that very dict if it is one."""
    if type(event) is dict:
        return event
    return dict(attributes_of(event))


def encoded(events: Sequence[Asked] | Events) -> Events:
    if isinstance(events, Events):
        return events
    return Events([event if type(event) is dict else own_attributes(event) for event in events])


# -- batches of encoded events (rule 3) ------------------------------------------------------------


class Bodies(NamedTuple):
    """Encoded events, one after the other, with where each ends; and what each may be."""

    joined: NDArray[np.uint8]
    stops: NDArray[np.int64]
    limits: Limits


def bodies_of(events: Sequence[bytes], limits: Limits) -> Bodies:
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
