"""Values that a fuzzer cannot know when it draws a frame, and what they become when it is sent.

A frame that names a request, a tick or a version that nobody uses dies at the first check. So the
strategies draw *symbols* in place of such values: `Heard("tick", back=1, offset=-1)` is one less
than the last but one tick that the hostile party was told. A hostile party remembers what it was
told in a `Memory`; `resolved` puts values in the place of symbols, just before the frame is sent.

Symbols are plain values, so a failing example prints them, and the same example run again makes the
same frames.

State: the memory of one hostile party. It lives as long as the example.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import inspect

from anabranch.model.encoding import encode_draft, encode_event
from anabranch.model.event import Control, Event, EventId, Value

#: Values of one kind that a party remembers.
REMEMBERED_MAX = 32
#: Fields that hold the same kind of value under another name.
KINDS = {
    **dict.fromkeys(
        ["first", "last", "through", "head", "oldest", "mark", "ticks", "ranges", "silent"], "tick"
    ),
    **dict.fromkeys(["oldest_ns", "head_ns", "time_ns", "reported_ns", "since_ns"], "time_ns"),
    "edition": "version",
    "base": "version",
    "base_edition": "version",
    "begun": "incarnation",
}


def kind_of(name: str) -> str:
    """What a field of this name holds."""
    return KINDS.get(name, name)


@dataclass(frozen=True)
class Heard:
    """A value of this kind that the party was told, the last one or one before it."""

    kind: str
    back: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Body:
    """An encoded event: the next of its publisher and incarnation, or `step` away from that."""

    #: "": the party itself. An event of any other publisher is refused.
    publisher: str
    incarnation: int
    step: int
    attributes: tuple[tuple[str, Value], ...]
    control: Control
    #: A draft has no id.
    is_draft: bool = False


@dataclass
class Memory:
    """What one hostile party was told, and what it has published."""

    #: Under which name the party connected.
    name: str = ""
    told: dict[str, deque[object]] = field(default_factory=dict)
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    def hears(self, frame: msgspec.Struct) -> None:
        """Remember all that a frame says."""
        self.learns(type(frame).__name__, frame)
        self._read(frame)

    def learns(self, kind: str, value: object) -> None:
        """Remember one value."""
        self.told.setdefault(kind, deque(maxlen=REMEMBERED_MAX)).append(value)

    def _read(self, value: object, name: str = "") -> None:
        if isinstance(value, msgspec.Struct):
            if name:
                self.learns(kind_of(name), value)
            for each in msgspec.structs.fields(value):
                self._read(getattr(value, each.name), each.name)
        elif isinstance(value, Mapping):
            for key, each in list(value.items())[:8]:
                self._read(key, "key")
                self._read(each, name)
        elif isinstance(value, list | tuple):
            for each in value[:8]:
                self._read(each, name)
        elif isinstance(value, int | str) and not isinstance(value, bool):
            self.learns(kind_of(name), value)

    def recall(self, symbol: Heard, expected: type) -> object:
        """What the symbol stands for; None if nothing of that type was told."""
        told = [each for each in self.told.get(symbol.kind, ()) if type(each) is expected]
        return told[-1 - symbol.back % len(told)] if told else None

    def encoded(self, body: Body) -> bytes:
        """The bytes of an event."""
        attributes = dict(body.attributes)
        if body.is_draft:
            return encode_draft(Event(attributes, control=body.control))
        publisher = body.publisher or self.name or "-"
        key = (publisher, body.incarnation)
        sequence = max(0, self.sequences.get(key, 0) + 1 + body.step)
        if body.step == 0:
            self.sequences[key] = sequence
        event_id = EventId(publisher, body.incarnation, sequence)
        return encode_event(Event(attributes, id=event_id, control=body.control))


def resolved(frame: msgspec.Struct, memory: Memory) -> msgspec.Struct:
    """The frame with values in the place of symbols, all of them within the bounds of its type."""
    described = inspect.type_info(type(frame))
    assert isinstance(described, inspect.StructType)
    return _struct(frame, described, memory)


def _struct(value: msgspec.Struct, kind: inspect.StructType, memory: Memory) -> msgspec.Struct:
    parts = {
        each.name: _resolved(getattr(value, each.name), each.type, memory) for each in kind.fields
    }
    return kind.cls(**parts)


def _resolved(value: object, kind: inspect.Type, memory: Memory) -> object:
    if isinstance(value, Body):
        return memory.encoded(value)
    match kind:
        case inspect.IntType(ge=least, le=most):
            if isinstance(value, Heard):
                told = memory.recall(value, int)
                value = value.offset + (told if isinstance(told, int) else 1)
            assert isinstance(value, int)
            return min(max(value, least or 0), (1 << 63) - 1 if most is None else most)
        case inspect.StrType():
            if isinstance(value, Heard):
                value = memory.recall(value, str) or ""
            assert isinstance(value, str)
            return value[: kind.max_length]
        case inspect.StructType():
            if isinstance(value, Heard):
                return memory.recall(value, kind.cls) or _least(kind)
            assert isinstance(value, msgspec.Struct)
            return _struct(value, kind, memory)
        case inspect.ListType(item_type=item):
            assert isinstance(value, list)
            return [_resolved(each, item, memory) for each in value]
        case inspect.VarTupleType(item_type=item):
            assert isinstance(value, tuple)
            return tuple(_resolved(each, item, memory) for each in value)
        case inspect.TupleType(item_types=items):
            assert isinstance(value, tuple)
            pairs = zip(value, items, strict=True)
            return tuple(_resolved(each, item, memory) for each, item in pairs)
        case inspect.DictType(key_type=key, value_type=item):
            assert isinstance(value, Mapping)
            return {_resolved(k, key, memory): _resolved(v, item, memory) for k, v in value.items()}
        case inspect.UnionType(types=kinds):
            structs = [each for each in kinds if isinstance(each, inspect.StructType)]
            if isinstance(value, Heard):
                told = (memory.recall(value, each.cls) for each in structs)
                return next((each for each in told if each is not None), _least(structs[0]))
            for each in structs:
                if isinstance(value, each.cls):
                    return _struct(value, each, memory)
    return value


def twisted(value: object, path: Sequence[int], number: int, name: str) -> object:
    """The same with one part of it changed, at the end of a path of places: a number becomes that
    number, a text that name, a list loses its first item, is reversed or repeats itself."""
    place = path[0] if path else 0
    rest = path[1:]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + number if abs(number) < 10 else number
    if isinstance(value, str):
        return name
    if isinstance(value, bytes):
        return value[: place % (len(value) + 1)] + name.encode()
    if isinstance(value, msgspec.Struct) and (fields := msgspec.structs.fields(value)):
        field_name = fields[place % len(fields)].name
        changed = twisted(getattr(value, field_name), rest, number, name)
        return msgspec.structs.replace(value, **{field_name: changed})
    if isinstance(value, dict) and value:
        key = list(value)[place % len(value)]
        return value | {key: twisted(value[key], rest, number, name)}
    if isinstance(value, list | tuple) and value:
        items = list(value)
        whole = (items[1:], items[::-1], items + items)
        if not rest:
            items = whole[place % len(whole)]
        else:
            items[place % len(items)] = twisted(items[place % len(items)], rest, number, name)
        # Only in a list may items change their places: a pair stays a pair.
        return type(value)(items) if rest or isinstance(value, list) else value
    return value


def _least(kind: inspect.StructType) -> msgspec.Struct:
    """The plainest value of a struct."""
    return kind.cls(**{each.name: _plain(each.type) for each in kind.fields})


def _plain(kind: inspect.Type) -> object:
    match kind:
        case inspect.IntType(ge=least):
            return least or 0
        case inspect.BoolType():
            return False
        case inspect.StrType():
            return ""
        case inspect.BytesType():
            return b""
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.ListType():
            return []
        case inspect.VarTupleType(item_type=item, min_length=least):
            return tuple(_plain(item) for _ in range(least or 0))
        case inspect.NoneType():
            return None
        case inspect.DictType():
            return {}
        case inspect.StructType():
            return _least(kind)
    raise AssertionError(f"frames have no fields of this kind: {kind}")
