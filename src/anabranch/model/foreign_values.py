"""Values of programs that are not attribute values: which are converted, and hints for the others.

A program has values of many types, an attribute has four. A datetime with a time zone becomes its
timestamp (`timestamps`), because that loses neither the instant nor the order. Everything else is
refused with a hint, because only the program knows which conversion keeps what matters: a decimal
may become a rounded float, an exact integer of its smallest unit, or a text; a list may become an
attribute for each member or a text (ADR 0029).

`remedy_for` is for a value whose type is not exactly str, int, float, bool or datetime. Stateless.
"""

from collections.abc import Collection, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Final

_VALUE_TYPES: Final = "a str, int, float, bool or datetime with a time zone"
_LISTS_REMEDY: Final = (
    "attributes hold no lists: give each member a boolean attribute ({'tag.red': True}), or one"
    " delimited text (',red,blue,'), which LIKE '%,red,%' searches"
)


def remedy_for(value: object) -> str:
    """Return what to do instead of using this value."""
    if value is None:
        return "leave out an attribute that has no value"
    if hasattr(value, "dtype"):
        return _remedy_for_numpy(value)
    if isinstance(value, Decimal):
        return (
            "a float may round a decimal, so convert it yourself: float(x), an integer of the"
            " smallest unit such as cents, or str(x)"
        )
    if isinstance(value, str | int | float):
        return "a subclass is refused, convert it with str(), int() or float()"
    if isinstance(value, bytes | bytearray | memoryview):
        return "put bytes into the payload"
    return _remedy_for_time(value) or _remedy_for_collection(value)


def _remedy_for_time(value: object) -> str:
    if isinstance(value, date):
        return "give a datetime with a time zone, or the text of .isoformat()"
    if isinstance(value, time):
        return "give a datetime with a time zone, or a number such as seconds since midnight"
    if isinstance(value, timedelta):
        return "give a number, such as .total_seconds()"
    return ""


def _remedy_for_collection(value: object) -> str:
    if isinstance(value, Mapping):
        return "attributes are flat: give each member an attribute of its own ({'size.width': 3})"
    return _LISTS_REMEDY if isinstance(value, Collection) else f"a value must be {_VALUE_TYPES}"


def _remedy_for_numpy(value: object) -> str:
    kind = getattr(value.dtype, "kind", "")  # type: ignore[attr-defined]  # the caller asked for it
    if getattr(value, "shape", ()) != ():
        return _LISTS_REMEDY
    if kind == "M":
        return "if it is UTC, .astype('datetime64[ns]').item() gives integer nanoseconds"
    if kind == "m":
        return "give a number, such as .astype('timedelta64[ns]').item() in nanoseconds"
    return "turn a numpy scalar into a Python value with .item()"
