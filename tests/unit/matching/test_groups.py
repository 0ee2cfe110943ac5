"""Destinations and their numbers: given out on the first subscription, back after the last."""

from collections.abc import Hashable

import numpy as np

from anabranch.matching.groups import NOWHERE, Groups


def hit(groups: Groups, numbers: list[int]) -> set[Hashable]:
    hits, _ = groups.unhit()
    hits[numbers] = True
    return groups.names(hits)


def test_one_destination_has_one_number() -> None:
    groups = Groups()
    east, west = groups.join("east"), groups.join("west")
    assert east != west
    assert groups.join("east") == east
    assert hit(groups, [east]) == {"east"}
    assert hit(groups, [east, west]) == {"east", "west"}


def test_no_destination_is_nowhere() -> None:
    groups = Groups()
    assert groups.join(None) == NOWHERE
    groups.leave(NOWHERE)
    assert groups.members() == []
    assert hit(groups, [NOWHERE]) == set()


def test_destination_lives_as_long_as_its_last_subscription() -> None:
    groups = Groups()
    east = groups.join("east")
    groups.join("east")
    groups.leave(east)
    assert groups.members() == [("east", east, 1)]
    groups.leave(east)
    assert groups.members() == []
    assert groups.join("west") == east
    assert hit(groups, [east]) == {"west"}


def test_unused_numbers_count_as_hit() -> None:
    groups = Groups()
    numbers = [groups.join(name) for name in range(70)]
    groups.leave(numbers[3])
    hits, open_bits = groups.unhit()
    assert hits.tolist() == [number in (NOWHERE, numbers[3]) for number in range(71)]
    assert open_bits.sum() == 69
    assert open_bits[5] == 2
    assert open_bits.dtype == np.int64


def test_restored_destinations_keep_their_numbers() -> None:
    groups = Groups()
    groups.restore("east", 5, 2)
    groups.restore("west", 2, 1)
    assert hit(groups, [5]) == {"east"}
    assert hit(groups, [2, 3]) == {"west"}
    assert groups.join("east") == 5
