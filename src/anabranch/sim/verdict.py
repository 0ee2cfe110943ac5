"""What came of a seed: the anomalies, and how much happened, since little proves little."""

import msgspec

from anabranch.check.checker import Anomaly


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
