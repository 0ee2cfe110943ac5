"""The columns of a workload: their text, and what they match and cover."""

import numpy as np

from evaluation.workloads import (
    DOMAIN,
    Attribute,
    Columns,
    Schema,
    covering_conjunctions,
    matching_filters,
    offsets_of,
    wordings,
)

SCHEMA = Schema((Attribute("symbol", 200, "S"), Attribute("price"), Attribute("volume")))


def columns_of(*filters: list[list[tuple[int, int, int]]]) -> Columns:
    conjunctions = [conjunction for each in filters for conjunction in each]
    predicates = np.array([each for conjunction in conjunctions for each in conjunction], np.int64)
    return Columns(
        offsets_of(np.array([len(each) for each in filters])),
        offsets_of(np.array([len(each) for each in conjunctions])),
        predicates[:, 0],
        predicates[:, 1],
        predicates[:, 2],
    )


def test_equality_and_each_kind_of_interval_have_their_wording() -> None:
    columns = columns_of(
        [[(0, 7, 7), (1, 0, 99), (2, 5, 9)]],
        [[(1, 10, DOMAIN - 1)], [(0, 123, 123)]],
    )
    assert wordings(SCHEMA, columns) == [
        "symbol = 'S007' AND price <= 99 AND volume BETWEEN 5 AND 9",
        "(price >= 10) OR (symbol = 'S123')",
    ]


def test_closed_schema_always_says_between() -> None:
    closed = Schema(SCHEMA.attributes, open_ends=False)
    columns = columns_of([[(1, 0, 99)]], [[(1, 10, DOMAIN - 1)]])
    assert wordings(closed, columns) == [
        "price BETWEEN 0 AND 99",
        f"price BETWEEN 10 AND {DOMAIN - 1}",
    ]


def test_row_and_mapping_are_inverse() -> None:
    event = SCHEMA.mapping_of([42, -1, 17])
    assert event == {"symbol": "S042", "volume": 17}
    assert SCHEMA.row_of(event).tolist() == [42, -1, 17]


def test_filter_matches_if_some_conjunction_holds_in_full() -> None:
    columns = columns_of(
        [[(0, 7, 7), (1, 0, 99)]],
        [[(0, 8, 8)], [(1, 50, 60), (2, 0, 9)]],
        [[(0, 8, 8)], [(1, 70, 80)]],
    )
    row = SCHEMA.row_of({"symbol": "S007", "price": 55, "volume": 9})
    assert matching_filters(columns, row).tolist() == [0, 1]


def test_absent_attribute_satisfies_no_interval() -> None:
    columns = columns_of([[(1, 0, DOMAIN - 1)]], [[(0, 7, 7)]])
    assert matching_filters(columns, SCHEMA.row_of({"symbol": "S007"})).tolist() == [1]


def test_box_is_covered_by_wider_boxes_on_fewer_attributes() -> None:
    columns = columns_of(
        [[(1, 0, 100)]],
        [[(1, 10, 20), (0, 7, 7)]],
        [[(1, 11, 20)]],
        [[(1, 0, 100), (2, 0, 5)]],
    )
    box = {0: (7, 7), 1: (10, 20)}
    assert covering_conjunctions(columns, box).tolist() == [0, 1]
