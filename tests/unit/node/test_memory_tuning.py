"""The garbage collector looks at what is new, and now and then at everything."""

import gc
from collections.abc import Iterator

import pytest

from anabranch.node import memory_tuning as collecting
from anabranch.node.memory_tuning import Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    thresholds = gc.get_threshold()
    collector = Collector()
    yield collector
    collector.stop()
    gc.set_threshold(*thresholds)
    gc.unfreeze()


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


def knots() -> int:
    return sum(type(each) is Knot for each in gc.get_objects(2))


def test_what_survives_a_collection_is_not_looked_at_again(collector: Collector) -> None:
    collector.start()
    kept = Knot()
    gc.collect()
    assert knots() == 0
    del kept
    assert gc.collect() == 0


def test_what_was_frozen_and_dropped_is_freed_after_enough_collections(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "FREEZES_MAX", 3)
    collector.start()
    kept = [Knot() for _ in range(10)]
    gc.collect()
    kept.clear()
    found = [gc.collect() for _ in range(5)]
    assert sum(found) >= 10


def test_a_collector_that_is_stopped_freezes_nothing(collector: Collector) -> None:
    collector.start()
    collector.stop()
    kept = Knot()
    gc.collect()
    assert knots() == 1
    del kept
