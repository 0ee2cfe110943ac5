"""The errors of Anabranch: two families, by whose mistake it was.

A `LocalError` says that this program was used wrongly: a filter that does not parse, an event
that breaks a limit, an id added twice. It carries what was wrong, where, and what would be right.
A `RemoteError` says that bytes or frames from elsewhere break the protocol; whoever sent them
loses the link. Code that reads from the network raises nothing else, whatever it is fed.
"""


class AnabranchError(Exception):
    """Everything this package raises on purpose."""


class LocalError(AnabranchError):
    """The caller asked for something that cannot be."""


class RemoteError(AnabranchError):
    """A peer sent something that cannot be."""


class ContradictionError(RemoteError):
    """What came over a link contradicts what the same stream said before: its log is an old copy,
    or two brokers make it."""

    def __init__(self, stream: str, what: str) -> None:
        self.stream = stream
        super().__init__(
            f"{what}: the log of {stream!r} is an old copy, or two brokers have this name; stop"
            f" {stream!r}, and restore its newest log or run 'anabranch log renew' there"
        )


class EventError(LocalError, ValueError):
    """An event with an invalid name, value or control field, or beyond a limit."""


class FilterError(LocalError, ValueError):
    """A filter that is not valid, with the place where that shows."""

    def __init__(
        self, message: str, *, text: str = "", position: int = -1, expected: str = ""
    ) -> None:
        self.message = message
        #: The whole filter as it was given, or "" where there is no text.
        self.text = text
        #: Index of the offending character in `text`, or -1 where there is none.
        self.position = position
        #: What would have been right at that place, or "".
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
    """An id that is already there."""


class UnknownIdError(LocalError, KeyError):
    """An id that is not there."""

    # KeyError would show the message in quotes.
    __str__ = Exception.__str__


class FilterLimitError(FilterError):
    """A filter that is well formed but larger than the limits allow."""


class PatternError(FilterError):
    """A pattern that is not valid, with the place where that shows."""


class PatternLimitError(PatternError):
    """A pattern that is well formed but larger than the limits allow."""
