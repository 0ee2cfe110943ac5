"""The verdict on a seed: its anomalies, and counts of the activity that was checked."""

import zlib
from typing import get_args

import msgspec

from anabranch.check.checker import Anomaly
from anabranch.check.history import AnyRecord, History
from anabranch.model.client_frames import AnyClientFrame, Cut, PublishRefused, Refused
from anabranch.wire.codec import encode_client


class SimVerdict(msgspec.Struct, frozen=True):
    """What came of a seed."""

    seed: int
    anomalies: tuple[Anomaly, ...]
    simulated_s: float
    brokers: int
    published: int
    deliveries: int
    crashes: int
    partitions: int
    lost_frames: int
    interest_changes: int
    #: Of these, those that were made while a fault was going on.
    troubled_changes: int
    steps: int
    digest: str
    faults: dict[str, int]
    #: Batches that their sinks were told of.
    batches: int = 0
    #: Matches of patterns that were reported.
    matches: int = 0
    #: How often publishers advertised something else than before.
    advertised: int = 0
    #: On meshes: copies that went on to several neighbours, and targets that left their tree.
    splits: int = 0
    moves: int = 0
    #: How often a publisher came back when its origin had forgotten it.
    forgotten: int = 0
    #: Of streams with copies: disks that were lost, streams that were fetched, lives that were
    #: confirmed, and those of them that changed the set of copies.
    lost_disks: int = 0
    fetches: int = 0
    lives: int = 0
    set_changes: int = 0
    #: Events that keepers sent to edges while the origin was down.
    kept_reads: int = 0


_KINDS = {kind: number for number, kind in enumerate(get_args(AnyRecord))}


class Digest:
    """Digest of a simulation: one number for every frame that arrived and everything that happened.

    Two runs with the same digest did the same. The digest is meant to survive renaming and
    rewording:

    1. Frames are counted by their bytes, in which a kind of frame is a number and fields have no
       names. Reasons for people are left out.
    2. Records of a history are counted by the position of their kind in `AnyRecord` and by their
       values, without the names of classes and fields.

    State: the checksum so far.
    """

    def __init__(self) -> None:
        self.value = 0

    def add_link_frame(self, data: bytes) -> None:
        """Count a frame between brokers."""
        self.value = zlib.crc32(data, self.value)

    def add_client_frame(self, frame: AnyClientFrame, data: bytes) -> None:
        """Count a frame between a client and a broker."""
        if isinstance(frame, Cut | PublishRefused | Refused):
            data = encode_client(msgspec.structs.replace(frame, reason=""))
        self.value = zlib.crc32(data, self.value)

    def with_history(self, history: History) -> str:
        """The digest of all frames so far and of a history, in hexadecimal."""
        value = self.value
        for record in history:
            parts = (_KINDS[type(record)], _values_of(record))
            value = zlib.crc32(repr(parts).encode(), value)
        return f"{value:08x}"


def _values_of(part: object) -> object:
    """Values without names, however deep they are nested."""
    if isinstance(part, msgspec.Struct):
        return tuple(_values_of(each) for each in msgspec.structs.astuple(part))
    if isinstance(part, tuple | list):
        return tuple(_values_of(each) for each in part)
    return part
