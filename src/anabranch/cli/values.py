"""Parse attribute values from text: `name=value` arguments and CSV cells; and parse times.

    price=12.50   volume=1000   urgent=true   symbol=IBM   zip=01234   phone=+4312345   note=

Rules

1. Text becomes a number only if the conversion is lossless: digits with an optional minus, without
   a plus, a leading zero or an exponent. Without a decimal point it is an integer, if it fits in
   64 bits. With a point between digits it is a float, if a float represents exactly that decimal.
   So the postal code 01234, the part number 1e5 and a number of thirty digits remain strings.
2. `true` and `false`, in any case, are booleans.
3. Text in double quotes is a string: `code="12"`.
4. All other text is a string. Nothing after the `=` is the empty string.
5. A declared type (`--types`) overrides these rules. A string is taken literally; a number may use
   notation that rule 1 rejects; text that is not of the declared type is an error. Only a declared
   timestamp turns text into a time (`model.timestamps`): `2026-01-31T12:00:00Z` remains a string.

Attributes may also be a JSON object; an error then names the attribute. Its values have their types
from JSON, and a declared type applies to strings:

6. A string is read as text of the declared type. A number or boolean must have that type already;
   an integer is accepted as a float, and as a timestamp in nanoseconds.

A time is an ISO date with a time, or an age such as `10m`. Without a time zone it is UTC, as in all
output of the command.
"""

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

import msgspec

from anabranch.cli.errors import CommandError
from anabranch.model.event import INT_MAX, INT_MIN, Value
from anabranch.model.foreign_values import remedy_for
from anabranch.model.timestamps import TimestampError, nanoseconds_of, parse_timestamp

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")
_ANY_INTEGER = re.compile(r"[+-]?[0-9]+")
_ANY_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
#: Text of this length has at most fifteen digits, which a float always represents exactly.
_EXACT_CHARACTERS = 16


class Type(StrEnum):
    """A type that `--types` can declare."""

    string = "string"
    integer = "integer"
    float = "float"
    boolean = "boolean"
    timestamp = "timestamp"


def typed(text: str) -> Value:
    """Infer the value of a text: rules 1 to 4."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        number = int(text)
        return number if INT_MIN <= number <= INT_MAX else text
    if _FLOAT.fullmatch(text):
        real = float(text)
        is_exact = len(text) <= _EXACT_CHARACTERS or Decimal(text) == Decimal(repr(real))
        return real if is_exact else text
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    return text


def declared(text: str, kind: Type) -> Value:
    """Parse a text as a declared type: rule 5."""
    if kind is Type.string:
        return text
    if kind is Type.boolean and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if kind is Type.float and _ANY_FLOAT.fullmatch(text):
        return float(text)
    if kind is Type.integer and _ANY_INTEGER.fullmatch(text):
        number = int(text)
        if INT_MIN <= number <= INT_MAX:
            return number
    if kind is Type.timestamp:
        try:
            return parse_timestamp(text)
        except TimestampError as error:
            raise CommandError(f"{text!r} is {error}; --types declares a timestamp") from None
    raise CommandError(f"{text!r} is not of type {kind}, which --types declares")


#: Type of a value in JSON → the declared types that it has already.
_HELD: dict[type, tuple[Type, ...]] = {
    bool: (Type.boolean,),
    int: (Type.integer, Type.float, Type.timestamp),
    float: (Type.float,),
}


def redeclared(name: str, value: Value, kind: Type) -> Value:
    """Convert a value from JSON to a declared type: rule 6."""
    if isinstance(value, str):
        return value_of(name, value, {name: kind})
    if kind not in _HELD[type(value)]:
        raise CommandError(f"{name}: {value!r} is not of type {kind}, which --types declares")
    return float(value) if kind is Type.float else value


def value_of(name: str, text: str, types: dict[str, Type]) -> Value:
    """Parse the value of an attribute: by its declared type if it has one, otherwise inferred."""
    if name not in types:
        return typed(text)
    try:
        return declared(text, types[name])
    except CommandError as error:
        raise CommandError(f"{name}: {error}") from None


def read_types(texts: Iterable[str]) -> dict[str, Type]:
    """Parse declarations such as `zip=string,price=float`."""
    types: dict[str, Type] = {}
    for part in ",".join(texts).split(","):
        name, _, kind = part.strip().rpartition("=")
        if not part.strip():
            continue
        if not name or kind not in set(Type):
            known = ", ".join(Type)
            raise CommandError(
                f"invalid --types entry {part!r}; write NAME=TYPE, where TYPE is one of {known}"
            )
        if name in types:
            raise CommandError(f"--types declares {name!r} twice")
        types[name] = Type(kind)
    return types


def attributes_of(arguments: Iterable[str], types: dict[str, Type]) -> dict[str, Value]:
    """Parse `name=value` arguments. Giving an attribute twice is an error."""
    found: dict[str, Value] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name:
            raise CommandError(f"{argument!r} is neither an address (host:port) nor name=value")
        if name != name.strip():
            raise CommandError(f"{argument!r} has a space around its name; write name=value")
        if name in found:
            raise CommandError(f"duplicate attribute {name!r}; give each attribute once")
        found[name] = value_of(name, text, types)
    return found


def json_problem(line: bytes, error: Exception) -> str:
    """What is wrong with a JSON object of attributes that could not be decoded."""
    try:
        values = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _syntax_problem(line, error)
    for name, raw in values.items():
        try:
            msgspec.json.decode(raw, type=Value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as reason:
            return f"attribute {name!r}: {_value_problem(bytes(raw), reason)}"
    return str(error)


def _syntax_problem(line: bytes, error: Exception) -> str:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as reason:
        return f"not JSON: {reason.msg} at character {reason.pos + 1}"
    except (ValueError, RecursionError):
        return f"not JSON: {error}"
    if isinstance(found, dict):  # Python reads more than JSON, such as NaN
        return f"not JSON: {error}"
    return 'not a JSON object, such as {"price": 12.5}'


def _value_problem(raw: bytes, error: Exception) -> str:
    if raw == b"null":
        return "null is not a value; leave out an attribute that has none"
    if raw[:1] in (b"[", b"{"):
        kind = "array" if raw[:1] == b"[" else "object"
        return f"an {kind} is not a value; {remedy_for([] if kind == 'array' else {})}"
    return str(error)


_AGO = re.compile(r"(\d{1,9})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment_ns(text: str, now: datetime) -> int:
    """Parse a time; returns nanoseconds since the epoch."""
    try:
        if ago := _AGO.fullmatch(text):
            found = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise CommandError(
            f"invalid time {text!r}; write 2026-01-31T12:00 (UTC), or an age: 90s, 10m, 2h, 3d"
        ) from None
    zoned = found if found.tzinfo else found.replace(tzinfo=UTC)
    return nanoseconds_of(zoned)
