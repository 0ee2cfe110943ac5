"""Attributes: the typed values by which an event is matched.

An event's attributes map names to values: a string, a 64-bit integer, a 64-bit float or a boolean.
How values compare is the business of `values`; this module says which ones an event may hold.

1. The type is exactly `str`, `int`, `float` or `bool`. A boolean is not an integer. Anything else
   is refused and never converted, subclasses and numpy scalars included: a conversion that loses
   bits or turns a truth into a number should be seen in the program that makes it.
2. An integer has 64 bits. A float is any float: NaN, the infinities and −0.0 travel bit by bit.
3. A string is any Unicode text, control characters included; a lone surrogate is no text.
4. No value means no attribute: None is refused, leave the attribute out.
5. Names follow `names`; count and sizes follow `Limits`.
6. Names that begin with `anabranch.pattern` are the network's own. An event may have them, but no
   client may publish it (`reserved_in`).
"""

from collections.abc import Mapping

from anabranch.model.errors import EventError
from anabranch.model.limits import Limits
from anabranch.model.names import check_name, clipped, is_plain, utf8_bytes
from anabranch.model.values import INT_MAX, INT_MIN, Value

#: What a name and its value take at most beside their text: two string headers, or one and 8 bytes.
_FRAMING_BYTES_MAX = 14
#: Names that begin like this are the network's own.
RESERVED = "anabranch.pattern"
_RESERVED_BYTES = RESERVED.encode()


def check_attributes(attributes: Mapping[str, Value], limits: Limits) -> int:
    """The bytes these attributes take at most when encoded, or an error that names the bad one."""
    if len(attributes) > limits.attributes_max:
        raise EventError(
            f"the event has {len(attributes)} attributes;"
            f" at most {limits.attributes_max} are allowed"
        )
    size = _FRAMING_BYTES_MAX * len(attributes) + _check_names(attributes, limits)
    for name, value in attributes.items():
        # Not isinstance: True is an int to it, and numpy's float64 a float.
        if type(value) is str:
            size += _check_text(name, value, limits)
        elif type(value) is int:
            if not INT_MIN <= value <= INT_MAX:
                raise EventError(_too_large(name))
        elif type(value) is not float and type(value) is not bool:
            raise EventError(_wrong_type(name, value))
    return size


def reserved_in(encoded: bytes, attributes: Mapping[str, Value]) -> str:
    """Why an event with these attributes is not to be published by a client; "" if it may be.

    `encoded` is the whole event: nearly always a look at its bytes is enough."""
    if _RESERVED_BYTES in encoded:
        for name in attributes:
            if name.startswith(RESERVED):
                own = f"names that begin with {RESERVED!r} are the network's own"
                return f"attribute {clipped(name)}: {own}"
    return ""


def names_are_plain(attributes: Mapping[str, Value], limits: Limits) -> bool:
    """Whether all names are seen to be right without looking at each; they must be strings.

    Together names are nearly always shorter than one may be, and plain ASCII.
    """
    return "" not in attributes and is_plain("".join(attributes), limits.name_bytes_max)


def _check_names(attributes: Mapping[str, Value], limits: Limits) -> int:
    """The bytes of all names, or their bound; or an error."""
    if set(map(type, attributes)) == {str} and names_are_plain(attributes, limits):
        return limits.name_bytes_max
    return sum(check_name(name, "attribute name", limits.name_bytes_max) for name in attributes)


def _check_text(name: str, value: str, limits: Limits) -> int:
    if value.isascii() and len(value) <= limits.value_bytes_max:
        return len(value)
    size = utf8_bytes(value, f"the value of attribute {clipped(name)},")
    if size > limits.value_bytes_max:
        raise EventError(
            f"attribute {clipped(name)} has {size} bytes; at most {limits.value_bytes_max} are"
            " allowed, put large content into the payload"
        )
    return size


def _too_large(name: str) -> str:
    # The number is not shown: it may have more digits than Python agrees to print.
    return (
        f"attribute {clipped(name)} is an integer outside {INT_MIN} … {INT_MAX};"
        " use a float or a string"
    )


def _wrong_type(name: str, value: object) -> str:
    kind = type(value)
    problem = f"attribute {clipped(name)} is a {kind.__module__}.{kind.__qualname__}; "
    if value is None:
        return f"attribute {clipped(name)} is None; leave out an attribute that has no value"
    if hasattr(value, "dtype"):
        return problem + "turn a numpy scalar into a Python value with .item()"
    if isinstance(value, str | int | float):
        return problem + "a subclass is refused, convert it with str(), int() or float()"
    if isinstance(value, bytes | bytearray | memoryview):
        return problem + "put bytes into the payload"
    return problem + "a value must be a str, int, float or bool"
