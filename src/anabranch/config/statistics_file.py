"""The statistics file of a network, written by `anabranch pipeline stats --export`.

The network file names it. Every broker reads it at start, extracts the statistics of its own stream
and sends them to other brokers with its advertisements. The file is not read again while the broker
runs. A file that cannot be read or parsed is an error: a broker that silently ignored it would
place patterns badly.
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
    """Load a statistics file; raises `ConfigError` if it is not valid."""
    try:
        with path.open("rb") as file:
            data = file.read(DEFAULT_STATISTICS_LIMITS.document_bytes_max + 1)
    except OSError as error:
        what = error.strerror or type(error).__name__
        raise ConfigError(
            f"statistics cannot be read: {what}; write them with `anabranch pipeline stats"
            " --export`, or remove `statistics`",
            path=path,
        ) from None
    try:
        return read_statistics(data)
    except StatisticsError as error:
        raise ConfigError(
            f"{error}; write the file again with `anabranch pipeline stats --export`", path=path
        ) from None


def stream_excerpt(path: Path | None, stream: str) -> bytes:
    """The encoded statistics of one stream; b"" if there are none."""
    return b"" if path is None else excerpt_of(load_statistics(path), stream)
