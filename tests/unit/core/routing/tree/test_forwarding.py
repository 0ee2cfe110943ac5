"""The sufficiency test and its memory."""

from anabranch.core.routing.tree.forwarding import Sufficiency
from anabranch.core.routing.tree.shared import KnownMarks, TreeCounters
from anabranch.model.version import Version

ONE, TWO = Version(1, 1), Version(1, 2)
BEHIND = {"east": ("s1", "s2"), "west": ("s3",)}


class Bench:
    """A test with all it depends on."""

    def __init__(self, remembers: bool = True) -> None:
        self.marks = KnownMarks()
        self.versions: dict[str, Version] = {}
        self.counters = TreeCounters()
        self.test = Sufficiency(self.marks, self.versions, BEHIND, self.counters, remembers)

    def holds(self, mark: int, direction: str = "east") -> bool:
        return self.test.holds("p", mark, direction)


def test_nothing_is_needed_before_the_first_mark() -> None:
    assert Bench().holds(0)


def test_unknown_vector_is_insufficient() -> None:
    assert not Bench().holds(5)


def test_every_edge_behind_the_direction_counts() -> None:
    bench = Bench()
    bench.marks.learn("p", 5, {"s1": ONE, "s2": ONE})
    bench.versions["s1"] = ONE
    assert not bench.holds(5)
    bench.versions["s2"] = TWO
    bench.test.drop_failures("east")
    assert bench.holds(5)


def test_edges_elsewhere_do_not_count() -> None:
    bench = Bench()
    bench.marks.learn("p", 5, {"s3": TWO})
    assert bench.holds(5, "east")
    assert not bench.holds(5, "west")


def test_result_is_remembered_until_the_mark_changes() -> None:
    bench = Bench()
    bench.marks.learn("p", 5, {})
    for _ in range(10):
        bench.holds(5)
    assert bench.counters.sufficiency_tests == 1
    bench.marks.learn("p", 9, {})
    bench.holds(9)
    assert bench.counters.sufficiency_tests == 2


def test_success_holds_for_earlier_marks_even_unknown_ones() -> None:
    bench = Bench()
    bench.marks.learn("p", 9, {"s1": ONE})
    bench.versions["s1"] = ONE
    assert bench.holds(9)
    assert bench.holds(7)


def test_failure_is_forgotten_when_more_is_known_of_that_direction_only() -> None:
    bench = Bench()
    bench.marks.learn("p", 5, {"s1": ONE, "s3": ONE})
    assert not bench.holds(5, "east")
    assert not bench.holds(5, "west")
    bench.versions |= {"s1": ONE, "s3": ONE}
    bench.test.drop_failures("west")
    assert not bench.holds(5, "east")
    assert bench.holds(5, "west")


def test_success_is_not_computed_again_when_more_is_known() -> None:
    bench = Bench()
    bench.holds(0)
    bench.test.drop_failures("east")
    bench.holds(0)
    assert bench.counters.sufficiency_tests == 1


def test_without_memory_every_question_is_computed() -> None:
    bench = Bench(remembers=False)
    for _ in range(10):
        bench.holds(0)
    assert bench.counters.sufficiency_tests == 10
