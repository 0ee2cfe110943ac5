"""The log of a node: formatting, and throttling of lines that remote peers can cause.

Lines go to the logger `anabranch.node`, as records with the attribute `broker`. The program decides
where and how they are written (`TextLines`, `JsonLines`); a program with an embedded broker that
configures no logging gets no output. A line that unauthenticated peers can trigger at will goes
through a `Throttle`, so that they cannot fill a disk.
"""

import logging
from collections.abc import MutableMapping
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import msgspec

LOGGER = logging.getLogger("anabranch.node")
# Without this, Python writes warnings to stderr in programs that have not configured logging.
LOGGER.addHandler(logging.NullHandler())
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_encoder = msgspec.json.Encoder()


class NodeLog(logging.LoggerAdapter[logging.Logger]):
    """The logger of one broker."""

    def __init__(self, broker: str) -> None:
        super().__init__(LOGGER, {"broker": broker})

    def process(
        self, msg: str, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        """Add the broker's name to the record."""
        kwargs["extra"] = self.extra
        return msg, kwargs


class Throttle:
    """Limits the lines per second; the next line reports how many were suppressed."""

    __slots__ = ("_log", "_per_s", "_second_at", "_suppressed", "_written")

    def __init__(self, log: NodeLog, per_s: int = 10) -> None:
        self._log = log
        self._per_s = per_s
        self._second_at = 0.0
        self._written = 0
        self._suppressed = 0

    def info(self, text: str) -> None:
        self._write(logging.INFO, text)

    def warning(self, text: str) -> None:
        self._write(logging.WARNING, text)

    def _write(self, level: int, text: str) -> None:
        now = monotonic()
        if now - self._second_at >= 1.0:
            self._second_at, self._written = now, 0
        if self._written >= self._per_s:
            self._suppressed += 1
            return
        self._written += 1
        more = f" (suppressed {self._suppressed} similar lines)" if self._suppressed else ""
        self._suppressed = 0
        self._log.log(level, "%s%s", text, more)


class TextLines(logging.Formatter):
    """Formats a record as text: time, level, broker, message."""

    def format(self, record: logging.LogRecord) -> str:
        name = getattr(record, "broker", record.name)
        line = f"{_time(record)} {record.levelname.lower():7} {name}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """Formats a record as one JSON document."""

    def format(self, record: logging.LogRecord) -> str:
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
