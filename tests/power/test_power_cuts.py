"""A broker process is recorded; whenever the power fails, what it promised is there afterwards."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.power import write_stream
from tests.power.cut_loop import Counts, Life, Trial, record, run, try_life
from tests.power.lossy_disk import ADVERSARIES, Chance, Image
from tests.power.mutants import PLANTS, Plant
from tests.power.promises import Promises
from tests.power.recovery_check import BrokenPromiseError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(write_stream.why_not()), reason=write_stream.why_not() or "it can"),
]
SEED = 7
ROUNDS = 10


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stream.build(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="module")
def first_life(library: Path) -> Life:
    return record(library, {}, life=0, rounds=ROUNDS, seed=SEED)


def test_every_prefix_and_every_loss_keeps_the_promises_of_two_lives(
    library: Path, first_life: Life
) -> None:
    counts = Counts(seed=SEED)
    left, promises = _tried(first_life, Promises(), counts)
    counts.lives += 1
    # The second life begins with a recovery, finds no room for new segments, and ends by a kill.
    _tried(record(library, left, life=5, rounds=ROUNDS, seed=SEED), promises, counts)
    # Little happened otherwise, and little was proven.
    assert counts.prefixes > 200
    assert counts.losses > 400
    assert counts.torn > 30
    assert counts.promises > 100


def _tried(life: Life, promises: Promises, counts: Counts) -> tuple[Image, Promises]:
    return try_life(life, promises, counts, chances=1, seed=SEED, every=8)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(first_life: Life, plant: Plant) -> None:
    planted = msgspec.structs.replace(first_life, calls=plant(first_life.calls))
    with pytest.raises(BrokenPromiseError):
        for _ in _cuts(planted):
            pass


def _cuts(life: Life) -> Iterator[int]:
    trial = Trial(life, Promises(), Counts(seed=SEED))
    for number, _ in trial.calls():
        for choice in (ADVERSARIES[0], Chance(number)):
            trial.cut(number, choice)
        yield number


def test_a_run_counts_what_it_tried(library: Path) -> None:
    counts = run(library, seed=SEED, lives=1, rounds=1, chances=0)
    assert counts.broken == 0, counts.why
    assert counts.lives == 1
    assert 0 < counts.images <= counts.states
    assert counts.cuts > counts.prefixes > 50
