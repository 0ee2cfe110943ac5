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

from anabranch.matching import keys
from anabranch.matching.kernels import layout as at
from anabranch.matching.schema import Schema
from anabranch.model.errors import EventError
from anabranch.model.event import Event
from anabranch.model.values import Value

Attributes = Mapping[str, Value]

_SHAPES_MAX = 1_024
_FORMS: dict[type, int] = {
    bool: at.FORM_TRUTH,
    int: at.FORM_INTEGER,
    float: at.FORM_FLOAT,
    str: at.FORM_TEXT,
}


class Events:
    """Encoded events: event i has the heads from offsets[i] to offsets[i + 1]."""

    __slots__ = ("attributes", "heads", "offsets", "stamp", "values")

    def __init__(
        self,
        attributes: Sequence[Attributes],
        heads: NDArray[np.int64],
        values: NDArray[np.int64],
        offsets: NDArray[np.int64],
        stamp: tuple[int, int],
    ) -> None:
        #: As given, for residues.
        self.attributes = attributes
        self.heads = heads
        self.values = values
        self.offsets = offsets
        #: Versions of the schema and its codes; to another schema the words mean nothing.
        self.stamp = stamp

    def __len__(self) -> int:
        return len(self.offsets) - 1


class _Shape:
    """How events with these names and types are packed."""

    __slots__ = ("heads", "pack_into", "pick", "size", "texts")

    def __init__(self, schema: Schema, names: tuple[str, ...], types: tuple[type, ...]) -> None:
        kept: list[int] = []
        heads: list[int] = []
        form = "<"
        #: (place among the packed values, codes of the attribute, whether text order matters)
        self.texts: list[tuple[int, Mapping[str, int], bool]] = []
        for index, (name, kind) in enumerate(zip(names, types, strict=True)):
            if kind not in _FORMS:
                raise EventError(
                    f"attribute {name!r} holds a {kind.__name__};"
                    " a value is a str, an int, a float or a bool"
                )
            attribute = schema.attributes.get(name)
            if attribute is None:
                continue
            if kind is str:
                codes = schema.codes.get(attribute, _NO_CODES)
                self.texts.append((2 * len(kept), codes, attribute in schema.axes[at.TEXT]))
            form += "dq" if kind is float else "qq"
            kept.append(index)
            heads.append(attribute | _FORMS[kind] << 32)
        self.heads = np.array(heads, np.int64)
        self.size = len(kept)
        self.pack_into = struct.Struct(form).pack_into
        self.pick = _picker(kept)


_NO_CODES: Mapping[str, int] = {}


def _picker(kept: list[int]) -> Callable[[list[Value]], tuple[Value, ...]] | None:
    """Picks the kept values, a 0 behind each; None where nothing is kept."""
    if not kept:
        return None
    return itemgetter(*(place for index in kept for place in (index, -1)))


class EventEncoder:
    """Turns events into words, for one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._shapes: dict[tuple[tuple[str, ...], tuple[type, ...]], _Shape] = {}
        self._version = schema.version
        self._buffer = np.zeros(64, np.int64)

    @property
    def stamp(self) -> tuple[int, int]:
        """What encoded events must carry to be understood now."""
        return self._schema.version, self._schema.code_version

    def one(self, attributes: Attributes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(heads, values) of one event; the values are valid until the next call."""
        row = [*attributes.values(), 0]
        shape = self._shape(tuple(attributes), tuple(map(type, row)))
        if len(self._buffer) < 2 * shape.size:
            self._buffer = np.zeros(4 * shape.size, np.int64)
        self._pack(shape, row, self._buffer, 0)
        return shape.heads, self._buffer

    def many(self, attributes: Sequence[Attributes]) -> Events:
        """All events, encoded."""
        offsets = np.zeros(len(attributes) + 1, np.int64)
        shapes = []
        rows = []
        for event in attributes:
            row = [*event.values(), 0]
            rows.append(row)
            shapes.append(self._shape(tuple(event), tuple(map(type, row))))
        np.cumsum([shape.size for shape in shapes], out=offsets[1:])
        values = np.zeros(2 * int(offsets[-1]) + 1, np.int64)
        at_byte = 0
        for shape, row in zip(shapes, rows, strict=True):
            self._pack(shape, row, values, at_byte)
            at_byte += 16 * shape.size
        heads = np.concatenate([shape.heads for shape in shapes]) if shapes else values[:0]
        return Events(attributes, heads, values, offsets, self.stamp)

    def _shape(self, names: tuple[str, ...], types: tuple[type, ...]) -> _Shape:
        if self._version != self._schema.version or len(self._shapes) > _SHAPES_MAX:
            self._shapes.clear()
            self._version = self._schema.version
        shape = self._shapes.get((names, types))
        if shape is None:
            shape = _Shape(self._schema, names, types[:-1])
            self._shapes[names, types] = shape
        return shape

    @staticmethod
    def _pack(shape: _Shape, row: list[Value], into: NDArray[np.int64], byte: int) -> None:
        if shape.pick is None:
            return
        words = shape.pick(row)
        if shape.texts:
            packed = list(words)
            for place, codes, ordered in shape.texts:
                text = packed[place]
                assert isinstance(text, str)
                packed[place] = codes.get(text, -1)
                if ordered:
                    packed[place + 1] = _text_key(text)
            shape_words: Sequence[Value] = packed
        else:
            shape_words = words
        try:
            shape.pack_into(into.data, byte, *shape_words)
        except struct.error:
            raise EventError("an integer attribute does not fit into 64 bits") from None


def _text_key(text: str) -> int:
    try:
        return keys.key_of_text(text)
    except UnicodeEncodeError:
        raise EventError("a text attribute holds a lone surrogate, which is no text") from None


def attributes_of(event: Event | Attributes) -> Attributes:
    """The mapping of an event, or the mapping itself."""
    if isinstance(event, Event):
        return event.attributes
    if isinstance(event, Mapping):
        return event
    raise EventError(f"expected an Event or a mapping of names to values, not {event!r}")
