"""The contract between an index and its engine, and the choice of the engine.

Two engines implement the contract: `compiled` (numba kernels) and `vectorised` (numpy only, for
machines without numba). Both handle entries, axes and codes, but no ids or filters.
"""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from anabranch.matching.events import Bodies, Events, Plain
from anabranch.matching.memory import Memory
from anabranch.matching.schema import Spelling
from anabranch.model.encoding import Envelope
from anabranch.model.errors import LocalError

Integers = NDArray[np.int32]
Words = NDArray[np.int64]
EngineName = Literal["auto", "numba", "numpy"]


class Found:
    """What a search found: owners and doubtful entries, both cut into events by their offsets."""

    __slots__ = ("doubt_offsets", "doubts", "offsets", "owners")

    def __init__(
        self, owners: Integers, offsets: Words, doubts: Integers, doubt_offsets: Words
    ) -> None:
        self.owners = owners
        self.offsets = offsets
        self.doubts = doubts
        self.doubt_offsets = doubt_offsets


class Engine(Protocol):
    """Entries in, owners out."""

    name: str

    def open_axis(self, axis: int, attribute: int, space: int) -> None:
        """A new axis."""

    def close_axis(self, attribute: int, space: int) -> None:
        """An axis that nothing refers to is gone."""

    def axis_is_used(self, axis: int) -> bool:
        """Whether some entry has a predicate on the axis."""

    def reserve_codes(self, count: int) -> None:
        """Codes are now below `count`."""

    @property
    def learn_pattern(self) -> Callable[[int, int, int, bytes], None] | None:
        """Is told about a new pattern: (code, attribute, kind, literal); None: it takes none."""

    def learn_name(self, attribute: int, name: str) -> None:
        """A new attribute has this name."""

    def rewrite_names(self, names: Sequence[str | None]) -> None:
        """These are the names of attributes now, and no others."""

    def learn_code(self, code: int, attribute: int, text: str) -> None:
        """A new code stands for this text of an attribute."""

    def drop_codes(self, codes: list[int]) -> None:
        """Forget codes that nothing refers to yet."""

    def freed_codes(self) -> list[int]:
        """Codes that lost their last reference since the last call."""

    def insert(self, spelling: Spelling, flags: int, owner: int, group: int) -> int:
        """Add a conjunction; returns its entry. `owner` is -1 for the first of a subscription."""

    def remove(self, entry: int) -> None:
        """Take an entry out."""

    def chain(self, entry: int) -> list[int]:
        """All entries of the subscription whose first entry this is."""

    def owner_of(self, entry: int) -> int:
        """The first entry of an entry's subscription."""

    def group_of(self, entry: int) -> int:
        """The number of the destination of an entry's subscription."""

    def name_by(self, ids: Words | None) -> None:
        """The ids of owners stand here from now on; None: they are no integers."""

    def search_one(self, event: Plain | Envelope) -> tuple[int, int]:
        """How many (owners, doubtful entries) one event has; they are valid until the next call."""

    def owners(self, count: int) -> Integers:
        """So many owners that the last `search_one` found."""

    def doubts(self, count: int) -> Integers:
        """So many doubtful entries that the last `search_one` found."""

    def ids(self, count: int) -> list[int] | None:
        """The ids of the owners that the last `search_one` found, if available."""

    def search(self, events: Events) -> Found:
        """Everything that matches, event by event."""

    def named(self, owners: Integers, names: Words) -> Words:
        """`names[owners]`."""

    def reach(self, event: Plain | Envelope, hits: NDArray[np.bool_], open_bits: Words) -> Integers:
        """Mark the destinations an event reaches in `hits`; returns the doubtful entries."""

    def search_bodies(self, bodies: Bodies) -> tuple[Integers, list[int]]:
        """The owners that encoded events have, and where those of each end; -1: ask about it
        alone."""

    def reach_many(self, bodies: Bodies, asked: int) -> list[int]:
        """Which of the destinations asked for, as bits below 63, each event reaches; -1: ask about
        it alone."""

    @property
    def nbytes(self) -> int:
        """Bytes in use."""


def numba_is_here() -> bool:
    return importlib.util.find_spec("numba") is not None


def make_engine(name: EngineName) -> Engine:
    """The engine of this name; `auto` is numba where it is installed."""
    if name not in ("auto", "numba", "numpy"):
        raise LocalError(f"unknown engine {name!r}; use 'auto', 'numba' or 'numpy'")
    if name == "numba" and not numba_is_here():
        raise LocalError("numba is not installed; use engine='numpy' or install numba")
    if name == "numpy" or not numba_is_here():
        from anabranch.matching.vectorised import VectorisedEngine  # noqa: PLC0415

        return VectorisedEngine()
    from anabranch.matching.compiled import CompiledEngine  # noqa: PLC0415 - needs numba

    return CompiledEngine()


def memory_of(engine: Engine) -> Memory | None:
    """The arrays of a compiled engine; None for another one."""
    memory = getattr(engine, "memory", None)
    return memory if isinstance(memory, Memory) else None


def engine_over(memory: Memory) -> Engine:
    """A compiled engine that searches these arrays."""
    if not numba_is_here():
        raise LocalError("a snapshot needs numba, which is not installed")
    from anabranch.matching.compiled import CompiledEngine  # noqa: PLC0415 - needs numba

    return CompiledEngine(memory)


def joined(parts: Sequence[Integers]) -> Integers:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
