"""Checks of what writers and copies say, before any of it is believed.

A frame that no correct broker sends raises `RemoteError`, before anything is changed: what waits
for the disk cannot be refused any more. What a lying broker says within these bounds is believed.

This module keeps no state.
"""

from collections.abc import Sequence

from anabranch.core.origin.log_tail import decode_record
from anabranch.core.replication.rows import rows_in
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.frame_parts import TICK_MAX
from anabranch.model.replication import KeepTicks, Life, LifeAnswer, LifeStart, Row

#: Copies do not promise lives with higher numbers; those of this broker may be a little higher.
LIFE_NUMBER_MAX = 1 << 62


def check_starts(source: str, starts: Sequence[LifeStart], newest: Life) -> None:
    """`RemoteError` if a stream cannot have these lives, up to this one."""
    ticks = [start.tick for start in starts]
    lives = [start.life for start in starts]
    if not is_ascending(ticks, lives):
        raise RemoteError(f"the lives that {source!r} names are not in order")
    if lives and lives[-1] > newest:
        raise RemoteError(f"{source!r} names a record with a life after {newest}")
    for copies in {start.copies for start in starts}:
        brokers = {member.broker for member in copies.members}
        if len(brokers) < len(copies.members) or not 1 <= copies.confirm <= len(brokers):
            raise RemoteError(f"{source!r} names an impossible copy set: {copies}")


def is_ascending(ticks: list[int], lives: list[Life]) -> bool:
    return ticks == sorted(set(ticks)) and lives == sorted(set(lives))


def check_frame(frame: KeepTicks) -> None:
    check_starts(frame.stream, frame.starts, frame.life)
    if frame.first + len(frame.records) > TICK_MAX:
        raise RemoteError(f"{frame.stream!r} sends ticks after the last possible one")
    if frame.oldest > frame.first + len(frame.records):
        raise RemoteError(f"{frame.stream!r} sends records that it has deleted")


def check_answer(source: str, answer: LifeAnswer) -> None:
    """`RemoteError` if no copy can be like that."""
    if answer.copy.broker != source:
        raise RemoteError(f"{source!r} answers for a copy of {answer.copy.broker!r}")
    if answer.promised.number > LIFE_NUMBER_MAX:
        raise RemoteError(f"{source!r} has promised life {answer.promised}, which no writer has")
    if answer.first > answer.last + 1:
        raise RemoteError(f"{source!r} has ticks {answer.first} to {answer.last}")
    check_starts(source, answer.starts, answer.promised)


def checked_rows(record: bytes) -> list[Row]:
    """The rows of a fetched record; `RemoteError` if this broker could not start with it."""
    try:
        decode_record(record)
    except LocalError as error:
        raise RemoteError(f"a fetched record is invalid: {error}") from error
    return rows_in(record)
