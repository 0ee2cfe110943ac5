"""Names: what may be called what, and how long a text is.

Attributes, streams, publishers, destinations, content types and correlation ids are names. Rules:

1. A name is a `str` of at least one character; where a field may stay empty, its check says so.
2. Every character is allowed but control characters (U+0000–U+001F, U+007F–U+009F), which have no
   place in a log line, and lone surrogates, which are no text and have no UTF-8 form.
3. Names compare code point by code point. Nothing is normalised, folded or trimmed, so that a name
   means the same bytes to every broker, whatever version of Unicode it was built with.
4. A length is counted in UTF-8 bytes, as it travels.

Nearly every name is printable ASCII, whose characters are its bytes. That case is tested first and
costs no encoding. A subclass of `str` (numpy's, an enum's) is refused: it would come back from
another broker as another type than it left.
"""

import re

from anabranch.model.errors import EventError

#: The client and the subscription of a join point are called by its pattern's id behind this,
JOIN_POINT_PREFIX = "pattern/"
#: and the publisher of a sink's events by the sink's name behind this. No client's name begins so.
SINK_PREFIX = "sink/"

_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f]")
_CLIP_CHARACTERS = 40


def clipped(text: str) -> str:
    """`text` quoted, and short enough for one line of an error."""
    if len(text) <= _CLIP_CHARACTERS:
        return repr(text)
    return repr(text[:_CLIP_CHARACTERS]) + "…"


def is_plain(text: str, bytes_max: int) -> bool:
    """Whether `text` is printable ASCII within `bytes_max`: the quick yes for nearly every name."""
    return len(text) <= bytes_max and text.isascii() and text.isprintable()


def utf8_bytes(text: str, what: str) -> int:
    """The length of `text` in UTF-8; `what` names it in the error if it is no text."""
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
    """The length of `name` in bytes, or an error that calls it `what`. Empty is an error."""
    size = check_optional_name(name, what, bytes_max)
    if size == 0:
        raise EventError(f"{what} is empty; it must have at least one character")
    return size


def check_client_name(name: object, what: str, bytes_max: int) -> None:
    """An error if a client cannot be called this."""
    check_name(name, what, bytes_max)
    for prefix, whose in ((JOIN_POINT_PREFIX, "join points"), (SINK_PREFIX, "sinks")):
        if isinstance(name, str) and name.startswith(prefix):
            raise EventError(
                f"{what} {clipped(name)} begins with {prefix!r}, which is reserved for {whose};"
                " choose another name"
            )


def check_optional_name(name: object, what: str, bytes_max: int) -> int:
    """The length of `name` in bytes, which may be 0, or an error that calls it `what`."""
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
