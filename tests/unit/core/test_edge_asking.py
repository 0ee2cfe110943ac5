"""The numbers of requests grow over all lives of an edge, however many one life needs."""

import pytest

from anabranch.core.edge.asking import Requests
from anabranch.core.edge.cursors import recovered_run
from tests.edge_parts import Rig


def test_a_run_that_nears_its_end_takes_the_next_one_before_it_needs_it() -> None:
    requests = Requests(3, 1.0)
    assert requests.next_run() == 0
    requests.last_number += (1 << 31) - 1
    assert requests.next_run() == 0
    requests.last_number += 1
    assert (requests.next_run(), requests.next_run()) == (4, 0)
    requests.last_number += 1 << 31
    assert requests.number() == (4 << 32) + 1
    assert requests.next_run() == 0


def test_a_run_that_is_taken_is_on_disk_and_the_next_life_has_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    monkeypatch.setattr(Requests, "next_run", lambda _: 7)
    rig.wait(1.0)
    assert rig.catalog["edge"]["run"] == b"7"
    assert recovered_run(rig.crash().catalog) == 9
