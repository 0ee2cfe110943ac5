"""Errors in network files and certificates, with their position.

    networks/quotes.toml:12: brokers.a.clients: 70000 is out of range; give 0 to 65535

An error is one line: file, line, key, problem, remedy. Errors that concern a whole file (it cannot
be read, a certificate is missing) have no line.
"""

from pathlib import Path

from anabranch.model.errors import LocalError


class ConfigError(LocalError):
    """A configuration that a network cannot run with."""

    def __init__(self, message: str, *, path: Path, line: int = 0, key: str = "") -> None:
        self.message = message
        self.path = path
        #: The line in the file, starting at 1; 0 if there is none.
        self.line = line
        #: The dotted key, or "".
        self.key = key
        super().__init__(message, path, line, key)

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else f"{self.path}"
        key = f"{self.key}: " if self.key else ""
        return f"{place}: {key}{self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        # Copying and pickling would lose the keyword arguments.
        return (_restored, (self.message, self.path, self.line, self.key))


def _restored(message: str, path: Path, line: int, key: str) -> ConfigError:
    return ConfigError(message, path=path, line=line, key=key)
