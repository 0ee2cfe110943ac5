"""What a client keeps on disk, so that the next process goes on where this one stopped.

    DIRECTORY/client.json    name, last incarnation, and how the durable subscriptions stand
    DIRECTORY/lock           held by the process that uses it

Rules:

1. The file is replaced as a whole: written beside it, synced, renamed. It is never half a state.
2. An incarnation, and the number of a durable subscription, are on disk before anybody else hears
   of them; where one starts on a stream, before the application does: whoever comes back at another
   broker has to name every stream that it was promised. How far subscriptions have got is written
   now and then; what is lost of that comes again unless the broker knows better.
3. A directory belongs to one client and to one process at a time.

Losing the directory costs no promise: a new incarnation follows the clock, and the owners of
durable subscriptions are asked where they stand.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from anabranch.core.session.effects import ResumePoint
from anabranch.model.durable_files import take_lock, write_whole
from anabranch.model.errors import LocalError

FORMAT = 1


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    client: str
    incarnation: int = 0
    standings: list[ResumePoint] = []


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Kept)


class ClientState:
    """The state directory of one client. See the rules at the top of this module."""

    def __init__(self, directory: Path, name: str | None, default_name: str) -> None:
        """`name` must be the one that the directory is for; None takes that, or the default."""
        self._directory = directory
        self._path = directory / "client.json"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise LocalError(
                f"{directory} cannot be the state of a client: that is a directory, and there is a"
                " file in its place"
            ) from None
        self._lock = take_lock(directory, f"client {name or default_name}")
        try:
            kept = self._load()
            if kept is not None and name is not None and kept.client != name:
                raise LocalError(
                    f"{directory} is the state of client {kept.client!r}, not of {name!r};"
                    " give every client its own directory"
                )
        except BaseException:
            os.close(self._lock)
            raise
        self.name = name or (default_name if kept is None else kept.client)
        self._incarnation = 0 if kept is None else kept.incarnation
        self._standings = {each.name: each for each in (() if kept is None else kept.standings)}

    def _load(self) -> _Kept | None:
        try:
            kept = _decoder.decode(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise LocalError(
                f"{self._path} is no state of a client: {error}; remove it to start without"
            ) from None
        if kept.format != FORMAT:
            raise LocalError(f"{self._path} has format {kept.format}; this program reads {FORMAT}")
        return kept

    @property
    def incarnation(self) -> int:
        """The last incarnation that was used; 0 if none was."""
        return self._incarnation

    def next_incarnation(self, least: int) -> int:
        """A higher incarnation than any before, at least this one; it is on disk."""
        self._incarnation = max(self._incarnation + 1, least)
        self._save()
        return self._incarnation

    def standing(self, name: str) -> ResumePoint | None:
        """How a durable subscription stood."""
        return self._standings.get(name)

    def keep(self, standings: Iterable[ResumePoint]) -> None:
        """Write down how durable subscriptions stand, if anything has changed."""
        before = dict(self._standings)
        for standing in standings:
            # Number 0 is not known to exist. What this process has in hand, the next has not.
            if standing.number:
                kept = msgspec.structs.replace(standing, received={})
                self._standings[standing.name] = kept
        if self._standings != before:
            self._save()

    def forget(self, name: str) -> None:
        """A durable subscription is over."""
        if self._standings.pop(name, None) is not None:
            self._save()

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock)

    def _save(self) -> None:
        kept = _Kept(
            client=self.name,
            incarnation=self._incarnation,
            standings=list(self._standings.values()),
        )
        write_whole(self._path, _encoder.encode(kept))
