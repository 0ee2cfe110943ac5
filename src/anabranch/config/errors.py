"""What is wrong with a network file or a certificate, and where.

    networks/quotes.toml:12: brokers.a.clients: 70000 is out of range; give 0 to 65535

One line: file, line, key, what was wrong, what to do. Where there is no line (the file cannot be
read, a certificate is missing) the file stands alone.
"""

from pathlib import Path

from anabranch.model.errors import LocalError


class ConfigError(LocalError):
    """Something a person wrote, or did not write, that a network cannot run with."""

    def __init__(self, message: str, *, path: Path, line: int = 0, key: str = "") -> None:
        self.message = message
        self.path = path
        #: The line in the file, from 1 on, or 0 where there is none.
        self.line = line
        #: The key as it would be written with points, or "".
        self.key = key
        super().__init__(message, path, line, key)

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else f"{self.path}"
        key = f"{self.key}: " if self.key else ""
        return f"{place}: {key}{self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        # The path and the place are given by name, which copying and pickling would forget.
        return (_again, (self.message, self.path, self.line, self.key))


def _again(message: str, path: Path, line: int, key: str) -> ConfigError:
    return ConfigError(message, path=path, line=line, key=key)
