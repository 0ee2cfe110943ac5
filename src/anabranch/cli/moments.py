"""Moments as people write them on a command line: a date with a time, or so long ago.

    2026-01-31    2026-01-31T12:00    2026-01-31T12:00:00.5+01:00    90s    10m    2h    3d

Without a zone the time is UTC, as in everything the command prints.
"""

import re
from datetime import UTC, datetime, timedelta

from anabranch.cli.errors import CommandError

_AGO = re.compile(r"(\d{1,9})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_ns(text: str, now: datetime) -> int:
    """Nanoseconds since 1970 of the moment that `text` names."""
    try:
        if ago := _AGO.fullmatch(text):
            found = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise CommandError(
            f"{text!r} is no time; write 2026-01-31T12:00 (UTC), or 90s, 10m, 2h, 3d ago"
        ) from None
    zoned = found if found.tzinfo else found.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(microseconds=1) * 1_000
