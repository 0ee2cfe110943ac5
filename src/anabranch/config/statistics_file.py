"""The statistics of a network: the file that `anabranch pipeline stats --export` wrote.

A network file names it, and every broker reads it when it starts, takes what is about its own
stream, and tells others with its advertisements. It is not read again while the broker runs. What
cannot be read, or is no such file, is an error that says what to do: a broker that quietly knew
nothing would place patterns badly and tell nobody.

These are functions; they keep no state.
"""

from pathlib import Path

from anabranch.config.errors import ConfigError
from anabranch.model.statistics import (
    DEFAULT_STATISTICS_LIMITS,
    Statistics,
    StatisticsError,
    excerpt_of,
    read_statistics,
)


def load_statistics(path: Path) -> Statistics:
    """What is known of the streams of a network; `ConfigError` if the file does not tell."""
    try:
        with path.open("rb") as file:
            data = file.read(DEFAULT_STATISTICS_LIMITS.document_bytes_max + 1)
    except OSError as error:
        what = error.strerror or type(error).__name__
        raise ConfigError(
            f"statistics cannot be read: {what}; write them with `anabranch pipeline stats"
            " --export`, or go without `statistics`",
            path=path,
        ) from None
    try:
        return read_statistics(data)
    except StatisticsError as error:
        raise ConfigError(
            f"{error}; write the file anew with `anabranch pipeline stats --export`", path=path
        ) from None


def stream_excerpt(path: Path | None, stream: str) -> bytes:
    """What one broker tells of its own stream; b"" if there is no file, or it says nothing."""
    return b"" if path is None else excerpt_of(load_statistics(path), stream)
