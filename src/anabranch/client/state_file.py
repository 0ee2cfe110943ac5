"""The state directory of a client, from which the next process resumes.

    DIRECTORY/client.json    name, last incarnation and positions of durable subscriptions
    DIRECTORY/lock           held by the process that uses the directory

Rules:

1. The file is replaced atomically: written to a temporary file, synced, renamed.
2. An incarnation, and the number of a durable subscription, are on disk before they are used. The
   start of a durable subscription on a stream is on disk before the application sees it, because a
   client that resumes at another broker must name every stream that it was promised. Positions are
   written periodically; events after a lost position are redelivered, unless the broker has a later
   acknowledgement.
3. A directory belongs to one client, and to one process at a time.

Losing the directory violates no guarantee: a new incarnation follows the clock, and the owners of
durable subscriptions report their positions.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from anabranch.core.session.effects import ResumePoint
from anabranch.model.durable_files import take_lock, write_whole
from anabranch.model.errors import LocalError

FORMAT = 1


class _StoredState(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    client: str
    incarnation: int = 0
    resume_points: list[ResumePoint] = msgspec.field(name="standings", default_factory=list)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_StoredState)


class ClientState:
    """The state directory of one client. See the rules at the top of this module."""

    def __init__(self, directory: Path, name: str | None, default_name: str) -> None:
        """Open the directory and lock it.

        `name` must be the name stored in the directory; None uses the stored name, or the default.
        """
        self._directory = directory
        self._path = directory / "client.json"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise LocalError(
                f"{directory} cannot be a state directory: there is a file in its place; give"
                " another path"
            ) from None
        self._lock = take_lock(directory, f"client {name or default_name}")
        try:
            kept = self._load()
            if kept is not None and name is not None and kept.client != name:
                raise LocalError(
                    f"{directory} belongs to client {kept.client!r}, not to {name!r};"
                    " give every client its own directory"
                )
        except BaseException:
            os.close(self._lock)
            raise
        self.name = name or (default_name if kept is None else kept.client)
        self._incarnation = 0 if kept is None else kept.incarnation
        stored = [] if kept is None else kept.resume_points
        self._resume_points = {resume_point.name: resume_point for resume_point in stored}

    def _load(self) -> _StoredState | None:
        try:
            kept = _decoder.decode(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise LocalError(
                f"{self._path} is not a valid client state: {error}; remove it to start without"
            ) from None
        if kept.format != FORMAT:
            raise LocalError(f"{self._path} has format {kept.format}; this program reads {FORMAT}")
        return kept

    @property
    def incarnation(self) -> int:
        """The last incarnation that was used; 0 if there was none."""
        return self._incarnation

    def next_incarnation(self, least: int) -> int:
        """Reserve an incarnation above all earlier ones, at least `least`, and write it to disk."""
        self._incarnation = max(self._incarnation + 1, least)
        self._save()
        return self._incarnation

    def resume_point(self, name: str) -> ResumePoint | None:
        """Return the stored resume point of a durable subscription."""
        return self._resume_points.get(name)

    def save_resume_points(self, resume_points: Iterable[ResumePoint]) -> None:
        """Write the resume points of durable subscriptions, if they have changed."""
        before = dict(self._resume_points)
        for resume_point in resume_points:
            # Number 0: the subscription may not exist. Events received by this process do not carry
            # over to the next.
            if resume_point.number:
                kept = msgspec.structs.replace(resume_point, received={})
                self._resume_points[resume_point.name] = kept
        if self._resume_points != before:
            self._save()

    def forget(self, name: str) -> None:
        """Remove a durable subscription that is over."""
        if self._resume_points.pop(name, None) is not None:
            self._save()

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def _save(self) -> None:
        kept = _StoredState(
            client=self.name,
            incarnation=self._incarnation,
            resume_points=list(self._resume_points.values()),
        )
        write_whole(self._path, _encoder.encode(kept))
