"""What a node tells people while it runs: lines of a log, each with the name of its broker.

Lines go to the logger `anabranch.node`, as records with the attribute `broker`. The root of the
program decides where they are written and how (`TextLines`, `JsonLines`); where it decides nothing,
as a program with an embedded broker may not, they are written nowhere. A line that strangers can
cause at will is written through a `Throttle`, so that nobody fills a disk from outside.
"""

import logging
from collections.abc import MutableMapping
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import msgspec

LOGGER = logging.getLogger("anabranch.node")
# Without this, Python would write warnings to stderr wherever nobody has set up logging.
LOGGER.addHandler(logging.NullHandler())
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_encoder = msgspec.json.Encoder()


class NodeLog(logging.LoggerAdapter[logging.Logger]):
    """The lines of one broker."""

    def __init__(self, broker: str) -> None:
        super().__init__(LOGGER, {"broker": broker})

    def process(
        self, msg: str, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        """Put the broker's name into the record."""
        kwargs["extra"] = self.extra
        return msg, kwargs


class Throttle:
    """At most so many lines a second; the next one says how many were left out."""

    __slots__ = ("_begun_at", "_left_out", "_log", "_per_s", "_said")

    def __init__(self, log: NodeLog, per_s: int = 10) -> None:
        self._log = log
        self._per_s = per_s
        self._begun_at = 0.0
        self._said = 0
        self._left_out = 0

    def info(self, text: str) -> None:
        """One more line, perhaps."""
        self._say(logging.INFO, text)

    def warning(self, text: str) -> None:
        """One more line that somebody should read, perhaps."""
        self._say(logging.WARNING, text)

    def _say(self, level: int, text: str) -> None:
        now = monotonic()
        if now - self._begun_at >= 1.0:
            self._begun_at, self._said = now, 0
        if self._said >= self._per_s:
            self._left_out += 1
            return
        self._said += 1
        more = f" (and {self._left_out} lines like this)" if self._left_out else ""
        self._left_out = 0
        self._log.log(level, "%s%s", text, more)


class TextLines(logging.Formatter):
    """A line for people: time, level, broker, text."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        who = getattr(record, "broker", record.name)
        line = f"{_time(record)} {record.levelname.lower():7} {who}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """A line for programs: one JSON document."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "broker": getattr(record, "broker", ""),
            "logger": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encoder.encode(line).decode()


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
