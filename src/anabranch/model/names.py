"""Rules for names and the length of text.

Attributes, streams, publishers, destinations, content types and correlation ids have names. Rules:

1. A name is a `str` of at least one character, unless its check allows the empty string.
2. All characters are allowed except control characters (U+0000–U+001F, U+007F–U+009F), which must
   not appear in log lines, and lone surrogates, which have no UTF-8 form.
3. Names are compared by code point. They are not normalised, folded or trimmed, so that a name is
   the same bytes to every broker, independent of its Unicode version.
4. Lengths are in UTF-8 bytes, as on the wire.

Nearly every name is printable ASCII, where characters are bytes. That case is tested first and
needs no encoding. Subclasses of `str` (numpy's, an enum's) are refused: another broker would decode
them as a different type.
"""

import re

from anabranch.model.errors import EventError

#: Prefix of the client and the subscription of a join point, followed by the pattern's id,
JOIN_POINT_PREFIX = "pattern/"
#: and of the publisher of a sink's events, followed by the sink's name. Clients cannot use either.
SINK_PREFIX = "sink/"

_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f]")
_CLIP_CHARACTERS = 40


def clipped(text: str) -> str:
    """Return `text` quoted and shortened for an error message."""
    if len(text) <= _CLIP_CHARACTERS:
        return repr(text)
    return repr(text[:_CLIP_CHARACTERS]) + "…"


def is_plain(text: str, bytes_max: int) -> bool:
    """Return whether `text` is printable ASCII within `bytes_max`: the fast path for nearly every
    name.
    """
    return len(text) <= bytes_max and text.isascii() and text.isprintable()


def utf8_bytes(text: str, what: str) -> int:
    """Return the length of `text` in UTF-8; raise `EventError`, which calls it `what`, if it has
    none.
    """
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise EventError(
            f"{what} {clipped(text)} has a lone surrogate at position {error.start};"
            " text must be valid Unicode"
        ) from None


def check_name(name: object, what: str, bytes_max: int) -> int:
    """Return the length of `name` in bytes; raise `EventError`, which calls it `what`, if it is
    invalid or empty.
    """
    size = check_optional_name(name, what, bytes_max)
    if size == 0:
        raise EventError(f"{what} is empty; it must have at least one character")
    return size


def check_client_name(name: object, what: str, bytes_max: int) -> None:
    """Raise `EventError` if a client cannot have this name."""
    check_name(name, what, bytes_max)
    for prefix, whose in ((JOIN_POINT_PREFIX, "join points"), (SINK_PREFIX, "sinks")):
        if isinstance(name, str) and name.startswith(prefix):
            raise EventError(
                f"{what} {clipped(name)} begins with {prefix!r}, which is reserved for {whose};"
                " choose another name"
            )


def check_optional_name(name: object, what: str, bytes_max: int) -> int:
    """Return the length of `name` in bytes, possibly 0; raise `EventError`, which calls it
    `what`.
    """
    if type(name) is not str:
        raise EventError(f"{what} is of type {type(name).__name__}; it must be a str")
    if is_plain(name, bytes_max):
        return len(name)
    size = utf8_bytes(name, what)
    if size > bytes_max:
        raise EventError(
            f"{what} {clipped(name)} has {size} bytes; at most {bytes_max} are allowed"
        )
    control = _CONTROL_CHARACTER.search(name)
    if control:
        raise EventError(
            f"{what} {clipped(name)} has the control character {control.group()!r}"
            f" at position {control.start()}; remove it"
        )
    return size


def check_pattern_id(pattern_id: str, name_bytes_max: int) -> None:
    """Check that a pattern id leaves room for the name of its join point; else `EventError`."""
    check_name(pattern_id, "the id of a pattern", name_bytes_max - len(JOIN_POINT_PREFIX))
