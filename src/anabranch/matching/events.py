"""Events as words: what a search takes.

Events of one publisher have one *shape*: the same attribute names with the same types, in the
same order. What depends on the shape alone (which attributes some filter names, how their
values are packed) is worked out once and kept; per event there remains looking up the codes of
its texts and one `pack_into`. Attributes that no filter names are left out.

Shapes are forgotten when the schema changes, and when there are too many of them; they hold no
state.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from anabranch.matching.kernels import layout as at
from anabranch.matching.schema import Schema
from anabranch.model.errors import EventError
from anabranch.model.event import Event
from anabranch.model.values import Value

Attributes = Mapping[str, Value]
#: An encoder, and the versions of its schema and of the codes.
Stamp = tuple[object, int, int]

_SHAPES_MAX = 4_096
_FORMS: dict[type, int] = {
    bool: at.FORM_TRUTH,
    int: at.FORM_INTEGER,
    float: at.FORM_FLOAT,
    str: at.FORM_TEXT,
}


class Events:
    """Encoded events: event i has the heads from offsets[i] to offsets[i + 1]."""

    __slots__ = ("attributes", "heads", "longest_text", "offsets", "stamp", "texts", "values")

    def __init__(  # noqa: PLR0917 - made in one place only
        self,
        attributes: Sequence[Attributes],
        heads: NDArray[np.int64],
        values: NDArray[np.int64],
        texts: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        longest_text: int,
        stamp: Stamp,
    ) -> None:
        #: As given, for residues.
        self.attributes = attributes
        self.heads = heads
        self.values = values
        #: The texts that filters look into, one after the other.
        self.texts = texts
        self.longest_text = longest_text
        self.offsets = offsets
        #: Whose words these are: to another encoder, or later, they may mean nothing.
        self.stamp = stamp

    def __len__(self) -> int:
        return len(self.offsets) - 1


class _Shape:
    """How events with these names and types are packed."""

    __slots__ = ("codes", "heads", "looked_into", "pack_into", "pick", "size")

    def __init__(self, schema: Schema, names: tuple[str, ...], types: tuple[type, ...]) -> None:
        kept: list[int] = []
        heads: list[int] = []
        form = "<"
        #: (place among the kept values, codes of the attribute)
        self.codes: list[tuple[int, Mapping[str, int]]] = []
        #: Places of texts whose bytes matter: they are packed with where these stand.
        self.looked_into: list[int] = []
        for index, (name, kind) in enumerate(zip(names, types, strict=True)):
            if kind not in _FORMS:
                raise EventError(
                    f"attribute {name!r} holds a {kind.__name__};"
                    " a value is a str, an int, a float or a bool"
                )
            attribute = schema.attributes.get(name)
            if attribute is None:
                continue
            layout = "d8x" if kind is float else "q8x"
            if kind is str:
                self.codes.append((len(kept), schema.codes.get(attribute, _NO_CODES)))
                if attribute in schema.axes[at.TEXT] or attribute in schema.axes[at.PATTERN]:
                    self.looked_into.append(len(kept))
                    layout = "qq"
            form += layout
            kept.append(index)
            heads.append(attribute | _FORMS[kind] << 32)
        self.heads = np.array(heads, np.int64)
        self.size = len(kept)
        self.pack_into = struct.Struct(form).pack_into
        #: Picks the kept values; None where all are.
        self.pick = None if len(kept) == len(names) else _picker(kept)

    def words(self, row: list[Value], texts: bytearray) -> list[Value]:
        """What is packed for the values of an event; texts looked into go to the end of `texts`."""
        if self.pick is not None:
            row = self.pick(row)
        if self.looked_into:
            row = self._with_places(row, texts)
        else:
            for place, codes in self.codes:
                row[place] = codes.get(row[place], -1)  # type: ignore[arg-type]
        return row

    def _with_places(self, row: list[Value], texts: bytearray) -> list[Value]:
        """The values with codes for texts, and where their bytes stand behind the code."""
        places: dict[int, int] = {}
        for place in self.looked_into:
            text = row[place]
            assert isinstance(text, str)
            data = _bytes_of(text)
            places[place] = len(texts) | len(data) << 32
            texts += data
        for place, codes in self.codes:
            row[place] = codes.get(row[place], -1)  # type: ignore[arg-type]
        for place in reversed(self.looked_into):
            row.insert(place + 1, places[place])
        return row


_NO_CODES: Mapping[str, int] = {}
_NO_TEXTS = np.frombuffer(bytearray(8), np.uint8)


def _picker(kept: list[int]) -> Callable[[list[Value]], list[Value]]:
    """A function that picks the values at these places."""
    if len(kept) < 2:
        return lambda row: [row[place] for place in kept]
    pick = itemgetter(*kept)
    return lambda row: list(pick(row))


class EventEncoder:
    """Turns events into words, for one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._shapes: dict[tuple[tuple[str, ...], tuple[type, ...]], _Shape] = {}
        self._version = schema.version
        #: The shape of the event before, and what it is a shape of.
        self._last = _Shape(schema, (), ())
        self._last_names: tuple[str, ...] = ()
        self._last_types: tuple[type, ...] = ()
        self._token = object()
        self._buffer = np.zeros(64, np.int64)
        self._view = self._buffer.data.cast("B")

    @property
    def stamp(self) -> Stamp:
        """What encoded events must carry to be understood now."""
        return self._token, self._schema.version, self._schema.code_version

    def one(
        self, attributes: Attributes
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
        """(heads, values, texts) of one event; the values are valid until the next call."""
        row = list(attributes.values())
        shape = self._shape(tuple(attributes), tuple(map(type, row)))
        if len(self._buffer) < 2 * shape.size:
            self._buffer = np.zeros(4 * shape.size, np.int64)
            self._view = self._buffer.data.cast("B")
        texts = bytearray()
        _pack(shape, row, self._view, 0, texts)
        return shape.heads, self._buffer, np.frombuffer(texts, np.uint8) if texts else _NO_TEXTS

    def many(self, attributes: Sequence[Attributes]) -> Events:
        """All events, encoded."""
        offsets = np.zeros(len(attributes) + 1, np.int64)
        shapes = []
        rows = []
        for event in attributes:
            row = list(event.values())
            rows.append(row)
            shapes.append(self._shape(tuple(event), tuple(map(type, row))))
        np.cumsum([shape.size for shape in shapes], out=offsets[1:])
        values = np.zeros(2 * int(offsets[-1]) + 1, np.int64)
        view = values.data.cast("B")
        texts = bytearray()
        byte = 0
        longest = 0
        for shape, row in zip(shapes, rows, strict=True):
            before = len(texts)
            _pack(shape, row, view, byte, texts)
            longest = max(longest, len(texts) - before)
            byte += 16 * shape.size
        heads = np.concatenate([shape.heads for shape in shapes]) if shapes else values[:0]
        all_texts = np.frombuffer(texts, np.uint8) if texts else _NO_TEXTS
        return Events(attributes, heads, values, all_texts, offsets, longest, self.stamp)

    def _shape(self, names: tuple[str, ...], types: tuple[type, ...]) -> _Shape:
        if self._version == self._schema.version:
            # Most events look like the one before, and comparing is cheaper than hashing.
            if names == self._last_names and types == self._last_types:
                return self._last
        else:
            self._shapes.clear()
            self._version = self._schema.version
        shape = self._shapes.get((names, types))
        if shape is None:
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            shape = _Shape(self._schema, names, types)
            self._shapes[names, types] = shape
        self._last, self._last_names, self._last_types = shape, names, types
        return shape


def _pack(shape: _Shape, row: list[Value], into: memoryview, byte: int, texts: bytearray) -> None:
    try:
        shape.pack_into(into, byte, *shape.words(row, texts))
    except struct.error:
        raise EventError("an integer attribute does not fit into 64 bits") from None


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise EventError("a text attribute holds a lone surrogate, which is no text") from None


def attributes_of(event: Event | Attributes) -> Attributes:
    """The mapping of an event, or the mapping itself."""
    if isinstance(event, Event):
        return event.attributes
    if isinstance(event, Mapping):
        return event
    raise EventError(f"expected an Event or a mapping of names to values, not {event!r}")
