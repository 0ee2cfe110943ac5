"""Attribute values as people type them: `name=value` arguments, and cells of a table.

    price=12.50   volume=1000   urgent=true   symbol=IBM   zip=01234   phone=+4312345   note=

Rules:

1. A number is what is written like one and would lose nothing by becoming one: digits, perhaps
   after a minus, without a plus, a needless zero in front, or an exponent. Without a point it is an
   integer, if 64 bits hold it; with a point between digits it is a float, if a float can say just
   that number. So a postal code 01234, a part 1e5 and a number of thirty digits remain text.
2. `true` and `false`, in any case, are booleans.
3. What stands in double quotes is text: `code="12"`.
4. Everything else is text; nothing after the `=` is empty text.
5. A type that was declared (`--types`) decides in place of these rules. A string is taken as it is
   written; a number may have what rule 1 does not allow; what cannot be of its type is an error.
"""

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from anabranch.cli.errors import CommandError
from anabranch.model.event import INT_MAX, INT_MIN, Value

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")
_ANY_INTEGER = re.compile(r"[+-]?[0-9]+")
_ANY_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
#: As long a text has fifteen digits at most, and those a float holds always.
_EXACT_CHARACTERS = 16


class Type(StrEnum):
    """What a value can be declared to be."""

    string = "string"
    integer = "integer"
    float = "float"
    boolean = "boolean"


def typed(text: str) -> Value:
    """The value that a text stands for by itself: rules 1 to 4."""
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
    """The value of this type that a text stands for: rule 5."""
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
    raise CommandError(f"{text!r} is no {kind}, which is what --types declares")


def value_of(name: str, text: str, types: dict[str, Type]) -> Value:
    """The value of an attribute, by its declared type or else by itself."""
    if name not in types:
        return typed(text)
    try:
        return declared(text, types[name])
    except CommandError as error:
        raise CommandError(f"{name}: {error}") from None


def read_types(texts: Iterable[str]) -> dict[str, Type]:
    """The types that texts such as `zip=string,price=float` declare."""
    types: dict[str, Type] = {}
    for part in ",".join(texts).split(","):
        name, _, kind = part.strip().rpartition("=")
        if not part.strip():
            continue
        if not name or kind not in set(Type):
            known = ", ".join(Type)
            raise CommandError(f"{part!r} in --types is no NAME=TYPE; types are {known}")
        if name in types:
            raise CommandError(f"--types declares {name!r} twice")
        types[name] = Type(kind)
    return types


def attributes_of(arguments: Iterable[str], types: dict[str, Type]) -> dict[str, Value]:
    """The attributes of `name=value` arguments, each of which may be there once."""
    found: dict[str, Value] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name:
            raise CommandError(f"{argument!r} is neither an address (host:port) nor name=value")
        if name in found:
            raise CommandError(f"the attribute {name!r} is given twice; an event has it once")
        found[name] = value_of(name, text, types)
    return found


# Moments as people write them on a command line: a date with a time, or so long ago.
#
#
# Without a zone the time is UTC, as in everything the command prints.


_AGO = re.compile(r"(\d{1,9})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_ns(text: str, now: datetime) -> int:
    """Nanoseconds since 1970 of the moment that `text` names."""
    try:
        if ago := _AGO.fullmatch(text):
            found = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise CommandError(
            f"{text!r} is no time; write 2026-01-31T12:00 (UTC), or 90s, 10m, 2h, 3d ago"
        ) from None
    zoned = found if found.tzinfo else found.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(microseconds=1) * 1_000
