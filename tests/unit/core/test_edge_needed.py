"""What places need of a stream: always the least tick of those that count, however they move."""

import random

from anabranch.core.edge.reorder_buffer import ReorderBuffer
from anabranch.core.edge.subscriptions import (
    EdgeStream,
    EdgeSubscription,
    LowestNeeded,
    StreamPosition,
)
from anabranch.model.filter import Filter

ALL = Filter.parse("price > 0")


def stream() -> EdgeStream:
    return EdgeStream("b", ReorderBuffer(10, 10, 10), 0)


def position_on(where: EdgeStream, start: int) -> StreamPosition:
    subscription = EdgeSubscription("c\0s", "s", "c", ALL, quality="reliable", number=0)
    return StreamPosition(subscription, where, start)


def acked(position: StreamPosition) -> int | None:
    """A place without a subscription's place in it is nobody's, as if it had ended."""
    return None if position.mode == "holding" else position.acked


def end(position: StreamPosition) -> None:
    position.mode = "holding"


def test_nothing_is_needed_where_there_is_no_place() -> None:
    assert LowestNeeded().lowest(acked) is None


def test_a_new_place_counts_from_its_start() -> None:
    where = stream()
    position_on(where, 8)
    assert where.lowest_needed.lowest(acked) == 7
    position_on(where, 5)
    assert where.lowest_needed.lowest(acked) == 4


def test_best_effort_needs_nothing() -> None:
    where = stream()
    subscription = EdgeSubscription("c\0s", "s", "c", ALL, quality="best-effort", number=0)
    StreamPosition(subscription, where, 8)
    assert where.lowest_needed.lowest(acked) is None


def test_the_least_is_right_however_places_come_move_and_go() -> None:
    draw = random.Random(4)
    where = stream()
    positions: list[StreamPosition] = []
    for _ in range(5_000):
        choice = draw.random()
        if choice < 0.3 or not positions:
            positions.append(position_on(where, draw.randrange(1, 1_000)))
        elif choice < 0.5:
            end(positions.pop(draw.randrange(len(positions))))
        else:
            draw.choice(positions).acked += draw.randrange(50)
        if draw.random() < 0.3:
            assert where.lowest_needed.lowest(acked) == min(
                (p.acked for p in positions), default=None
            )


def test_places_that_are_gone_do_not_pile_up_behind_one_that_stays() -> None:
    where = stream()
    position_on(where, 1)
    for start in range(2, 10_000):
        end(position_on(where, start))
        if where.lowest_needed.needs_sweep:
            where.lowest_needed.sweep(acked)
        assert where.lowest_needed.lowest(acked) == 0
    assert len(where.lowest_needed) < 1_000
