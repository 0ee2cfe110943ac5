"""Reading in bulk: whatever is in a log, a client gets what it may have and wants, and no more."""

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.matching.engine import numba_is_here
from anabranch.model.filter import Filter
from anabranch.store.bulk.slices import Slice, Wanted, read_plainly
from anabranch.store.log import Piece
from tests.bulk_parts import CLIENT, Said, all_slices, cuts, expected, log_of, rows_of, said
from tests.matching_parts import filters

BYTES_MAX = st.sampled_from([1, 60, 200, 1_000, 80_000, 2**20])


@st.composite
def asked(draw: st.DrawFn) -> tuple[list[Said], Wanted, Filter | None]:
    ticks = draw(st.lists(said, min_size=1, max_size=20))
    first = draw(st.integers(1, len(ticks)))
    wanted = Wanted(
        first=first,
        last=draw(st.integers(first, len(ticks))),
        client=draw(st.sampled_from([CLIENT, "é", ""])),
        now_ns=draw(st.sampled_from([0, 2_000, 2_001, 2**41])),
        bytes_max=draw(BYTES_MAX),
    )
    return ticks, wanted, draw(st.none() | filters)


@given(asked())
def test_the_plain_reader_gives_what_the_rules_say(
    given_log: tuple[list[Said], Wanted, Filter | None],
) -> None:
    ticks, wanted, filter = given_log
    with log_of(ticks) as log:
        slices = all_slices(partial(read_plainly, filter=filter), log.pieces, wanted)
        assert rows_of(slices) == expected(ticks, wanted, filter)


@pytest.mark.skipif(not numba_is_here(), reason="there are no kernels without numba")
@given(asked(), st.sampled_from([(40, 1), (500, 2), (262_144, 4_096)]))
def test_kernels_cut_the_same_slices_as_the_plain_reader(
    given_log: tuple[list[Said], Wanted, Filter | None], sizes: tuple[int, int]
) -> None:
    from anabranch.matching.sieve import Sieve
    from anabranch.store.bulk.compiled import BulkReader

    ticks, wanted, filter = given_log
    reader = BulkReader(*sizes)
    sieve = None if filter is None else Sieve(filter)

    def read(pieces: Sequence[Piece], asked: Wanted) -> Slice:
        return reader.read(pieces, asked, sieve)

    with log_of(ticks) as log:
        slices = all_slices(read, log.pieces, wanted)
        plain = all_slices(partial(read_plainly, filter=filter), log.pieces, wanted)
        assert cuts(slices) == cuts(plain)
        assert rows_of(slices) == expected(ticks, wanted, filter)
