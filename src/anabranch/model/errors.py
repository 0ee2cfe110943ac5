"""The errors of Anabranch: two families, by the side that made the mistake.

A `LocalError` reports incorrect use of this program: a filter that does not parse, an event that
exceeds a limit, a duplicate id. Its text says what is wrong, where, and what would be correct. A
`RemoteError` reports bytes or frames from a peer that violate the protocol; the peer loses its
connection. Code that reads from the network raises nothing else for any input.
"""


class AnabranchError(Exception):
    """Base class of all errors that this package raises deliberately."""


class LocalError(AnabranchError):
    """The caller requested something invalid."""


class RemoteError(AnabranchError):
    """A peer sent something invalid."""


class ContradictionError(RemoteError):
    """A frame contradicts earlier frames of the same stream: its log is an old copy, or two brokers
    write it.
    """

    def __init__(self, stream: str, what: str) -> None:
        self.stream = stream
        super().__init__(
            f"{what}: the log of {stream!r} is an old copy, or two brokers have this name; stop"
            f" {stream!r}, and restore its newest log or run 'anabranch log renew' there"
        )


class EventError(LocalError, ValueError):
    """An event has an invalid name, value or control field, or exceeds a limit."""


class FilterError(LocalError, ValueError):
    """A filter is invalid; includes the position of the mistake."""

    def __init__(
        self, message: str, *, text: str = "", position: int = -1, expected: str = ""
    ) -> None:
        self.message = message
        #: The complete filter as given, or "" if there is no text.
        self.text = text
        #: Index of the offending character in `text`, or -1 if there is none.
        self.position = position
        #: What would be correct at that position, or "".
        self.expected = expected
        super().__init__(message, text, position, expected)

    def __str__(self) -> str:
        where = f" at position {self.position}" if self.position >= 0 else ""
        wanted = f"; expected {self.expected}" if self.expected else ""
        return f"{self.message}{where}{wanted}{self._excerpt()}"

    def _excerpt(self) -> str:
        if self.position < 0 or not self.text:
            return ""
        start = max(0, self.position - 30)
        excerpt = self.text[start : self.position + 30]
        line = excerpt.replace("\n", " ").replace("\r", " ").replace("\t", " ")
        return f"\n  {line}\n  {' ' * (self.position - start)}^"


class DuplicateIdError(LocalError, ValueError):
    """The id already exists."""


class UnknownIdError(LocalError, KeyError):
    """The id does not exist."""

    # KeyError would quote the message.
    __str__ = Exception.__str__


class FilterLimitError(FilterError):
    """A filter is well formed but exceeds a limit."""


class PatternError(FilterError):
    """A pattern is invalid; includes the position of the mistake."""


class PatternLimitError(PatternError):
    """A pattern is well formed but exceeds a limit."""
