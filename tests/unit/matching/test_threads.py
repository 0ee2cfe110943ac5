"""One writer, several readers: every answer is the state before or after some single update.

The writer goes through a fixed series of states, no two of them equal. So an answer names the state
it was given in, or is no state at all; and to one reader states may only go forward. The switch
interval of the interpreter is made short, so that threads change places inside operations.
"""

import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from anabranch.matching.engine import EngineName
from anabranch.matching.index import MatchIndex
from tests.matching_parts import Attributes

UPDATES = 600
WINDOW = 40
EVENT: Attributes = {"x": 5, "y": 6, "s": "abc"}
#: Each matches EVENT; the second in two ways at once, the third after evaluation only.
FORMS = ["x > {} AND s = 'abc'", "x > {} AND y > 1 OR s LIKE 'a%' AND y > {}", "y > x AND x > {}"]

State = frozenset[Hashable]


@pytest.fixture(autouse=True)
def _short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Course:
    """The states a writer goes through, and the writer."""

    def __init__(self, engine: EngineName) -> None:
        self.index = MatchIndex(engine=engine)
        for number in range(WINDOW):
            self._add(number)
        self.places = {state: place for place, state in enumerate(self._states())}
        self.is_over = threading.Event()
        self.start = threading.Barrier(5)

    def _add(self, number: int) -> None:
        text = FORMS[number % 3].format(-number, -number)
        self.index.add(number, text, destination=f"link {number}")

    @staticmethod
    def _states() -> Iterator[State]:
        """Add one, remove the oldest, and so on."""
        for first in range(UPDATES // 2):
            yield frozenset(range(first, first + WINDOW))
            yield frozenset(range(first, first + WINDOW + 1))
        yield frozenset(range(UPDATES // 2, UPDATES // 2 + WINDOW))

    def write(self) -> None:
        self.start.wait()
        try:
            for first in range(UPDATES // 2):
                self._add(first + WINDOW)
                self.index.remove(first)
        finally:
            self.is_over.set()

    def read(self, ask: Callable[[], State]) -> list[int]:
        """The places in the course of the answers, as long as it lasts and once afterwards."""
        self.start.wait()
        seen = []
        while not self.is_over.is_set():
            seen.append(self.places[ask()])
        seen.append(self.places[ask()])
        return seen

    # -- ways of asking

    def match(self) -> State:
        return frozenset(self.index.match(EVENT))

    def batch(self) -> State:
        """All events of a batch are matched in one state."""
        answers = [frozenset(ids) for ids in self.index.match_batch([EVENT] * 5)]
        assert len(set(answers)) == 1
        return answers[0]

    def encoded(self) -> State:
        return frozenset(self.index.match_batch(self.index.encode([{"x": 0}, EVENT]))[1])

    def destinations(self) -> State:
        return frozenset(int(str(name).split()[1]) for name in self.index.destinations(EVENT))


def test_readers_see_whole_updates_in_their_order(engine: EngineName) -> None:
    course = Course(engine)
    asks = [course.match, course.batch, course.encoded, course.destinations]
    with ThreadPoolExecutor(5) as pool:
        readers = [pool.submit(course.read, ask) for ask in asks]
        pool.submit(course.write).result()
        for reader in readers:
            places = reader.result()
            assert places == sorted(places)
            assert places[-1] == UPDATES


def test_threads_may_all_write(index: MatchIndex) -> None:
    def work(worker: int) -> None:
        for number in range(150):
            index.add((worker, number), f"x > {number} AND s = 'k{number % 5}'")
            if number % 3 == 0:
                index.remove((worker, number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    kept = {(w, n) for w in range(4) for n in range(150) if n % 3 and n % 5 == 1}
    assert set(index.match({"x": 200, "s": "k1"})) == kept
    assert len(index) == 400


def test_one_of_several_threads_wins_an_id(index: MatchIndex) -> None:
    def claim(_: int) -> int:
        won = 0
        for number in range(200):
            try:
                index.add(number, "x = 1")
                won += 1
            except ValueError:
                pass
        return won

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(claim, range(4))) == 200
    assert set(index.match({"x": 1})) == set(range(200))
