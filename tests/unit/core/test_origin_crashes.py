"""Whatever crashes when: confirmed events are there once, and nothing is told before its sync.

Random runs of one origin on a simulated disk. Publishers repeat what is not confirmed, over new
sessions; edges ask, fall behind and are done; the disk is slow; the process dies anywhere. The
watcher in `origin_parts` objects during the run. Every mutant must be objected to.
"""

import random

import pytest

from anabranch.core.options import Options
from anabranch.model.client_frames import FORGOTTEN, Confirmed, PublishRefused
from anabranch.model.event import Control
from anabranch.model.frames import Answer, Done, Held, Hold, Nack, NotKept, Replay
from anabranch.sim.mutants.catalog import planted
from tests.origin_parts import EDGES, Driver, body

STEPS = 150


class Publisher:
    """Sends events in order, and again until they are confirmed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 1
        self.confirmed = 0
        self.sent = 0

    def bodies(self, first: int, last: int) -> list[bytes]:
        return [
            body(
                number,
                self.name,
                self.incarnation,
                control=Control(persistence="transient" if number % 7 == 0 else "persistent"),
            )
            for number in range(first, last + 1)
        ]


class Run:
    """One random life of an origin and of those around it."""

    def __init__(self, seed: int, options: Options) -> None:
        self.chance = random.Random(seed)
        self.driver = Driver(options)
        self.publishers = [Publisher(f"p{number}") for number in range(3)]
        self.session = 0
        self.counters = dict.fromkeys(EDGES, 0)
        #: Edge → what it may need is after this tick.
        self.done = dict.fromkeys(EDGES, 0)
        self.crashes = 0

    def step(self) -> None:
        chance, driver = self.chance, self.driver
        driver.now += chance.random() * 0.1
        kind = chance.choices(
            [self.publish, self.sync, self.time, self.interest, self.edge, self.read, self.crash],
            [6, 5, 3, 1, 4, 3, 0.5],
        )[0]
        kind()
        self.hear()
        driver.check_confirmed_are_there()
        if driver.options.retention == "refuse":
            oldest = driver.origin.oldest
            assert oldest - 1 <= min(self.done.values()), "deletes what an edge may need"

    def publish(self) -> None:
        publisher = self.chance.choice(self.publishers)
        if self.chance.random() < 0.03 and publisher.confirmed == publisher.sent:
            publisher.incarnation += self.chance.randint(1, 3)
            publisher.confirmed = publisher.sent = 0
        publisher.sent += self.chance.randint(0, 3)
        again = self.chance.random() < 0.3
        first = 1 if again else publisher.confirmed + 1
        self.session += self.chance.randint(0, 1)
        bodies = publisher.bodies(first, publisher.sent)
        self.driver.publish(*bodies, session=self.session, client=publisher.name)

    def hear(self) -> None:
        by_key = {(p.name, p.incarnation): p for p in self.publishers}
        for _, frame in self.driver.sent:
            publisher = isinstance(frame, Confirmed) and by_key.get(
                (frame.publisher, frame.incarnation)
            )
            if isinstance(frame, Confirmed) and publisher:
                publisher.confirmed = max(publisher.confirmed, frame.sequence)

    def sync(self) -> None:
        if self.driver.syncs:
            self.driver.sync()

    def read(self) -> None:
        if self.driver.reads:
            self.driver.read(self.chance.randint(1, 5))

    def time(self) -> None:
        self.driver.wait(self.chance.choice([0.01, 0.1, 1.0]))

    def interest(self) -> None:
        edge = self.chance.choice(EDGES)
        self.counters[edge] += self.chance.randint(-1, 2)
        self.driver.advance(**{edge: max(self.counters[edge], 0)})

    def edge(self) -> None:
        chance, driver = self.chance, self.driver
        edge = chance.choice(EDGES)
        head = driver.origin.head
        first = chance.randint(1, head + 2)
        kind = chance.random()
        if kind < 0.4:
            self.done[edge] = max(self.done[edge], min(first, head))
            driver.carry(Done(self.done[edge]), edge)
        elif kind < 0.7:
            driver.carry(Nack([(first, first + chance.choice([0, 3, 10**9]))]), edge)
        elif kind < 0.95:
            request = chance.randint(1, 1000)
            time_ns = 0 if chance.random() < 0.7 else int(chance.uniform(99, driver.now + 1) * 1e9)
            start = 0 if time_ns else first
            driver.carry(Replay(request, start, time_ns, ["n > 3"], 4, 10_000), edge)
        else:
            driver.carried.clear()
            driver.carry(Hold(chance.randint(1, 1000), first), edge)
            driver.sync_all()
            if any(isinstance(content, Held) for _, content in driver.carried):
                self.done[edge] = min(self.done[edge], first)

    def crash(self) -> None:
        self.crashes += 1
        self.driver.crash(self.chance.randrange(1 << 30))

    def settle(self) -> None:
        """No more crashes: everything that was ever sent is confirmed, without a gap."""
        driver = self.driver
        driver.sync_all()
        for publisher in self.publishers:
            key = (publisher.name, publisher.incarnation)
            # A small log takes a part at a time.
            for _ in range(publisher.sent):
                bodies = publisher.bodies(1, publisher.sent)
                driver.publish_synced(*bodies, session=self.session + 1, client=publisher.name)
            assert driver.confirmed.get(key, 0) == publisher.sent, "not everything is confirmed"
        driver.read_all()
        self._check_replay()

    def _check_replay(self) -> None:
        """A replay chunk by chunk brings exactly what the log still has."""
        driver = self.driver
        position = driver.origin.oldest - 1
        found: dict[int, None] = {}
        while position < driver.origin.head:
            driver.carried.clear()
            driver.carry(Replay(5_000, position + 1, 0, ["TRUE"], 5, 10_000))
            driver.read_all()
            ((_, answer),) = driver.carried
            assert isinstance(answer, Answer), answer
            found.update(dict.fromkeys(datum.tick for datum in answer.data))
            for hole in answer.withheld:
                found.update(dict.fromkeys(range(hole.first, hole.last + 1)))
            assert answer.through > position
            position = answer.through
        assert sorted(found) == [t for t in driver.events if t >= driver.origin.oldest]


class ForgetfulRun(Run):
    """The same with an origin that soon forgets publishers, which send old events again."""

    def __init__(self, seed: int) -> None:
        ticks = random.Random(seed).choice([3, 12, 8_192])
        super().__init__(seed, Options(publisher_keep_s=0.8, checkpoint_ticks=ticks))
        #: All that was ever sent: publisher, incarnation and last sequence.
        self.lives: dict[tuple[str, int], int] = {}
        self.forgotten = 0

    def step(self) -> None:
        before = self.driver.origin.publishers_forgotten
        super().step()
        self.forgotten += max(self.driver.origin.publishers_forgotten - before, 0)

    def publish(self) -> None:
        chance = self.chance
        publisher = chance.choice(self.publishers)
        key = (publisher.name, publisher.incarnation)
        if publisher.incarnation == 1 or chance.random() < 0.2:
            publisher.incarnation = int(self.driver.now * 1e9)
            key = (publisher.name, publisher.incarnation)
        elif chance.random() < 0.4:
            key = chance.choice(list(self.lives))
        known = self.lives.get(key, 0)
        self.lives[key] = known + chance.randint(0, 2)
        bodies = [body(n, *key) for n in range(chance.choice([1, known + 1]), self.lives[key] + 1)]
        self.session += 1
        self.driver.publish(*bodies, session=self.session, client=key[0])

    def time(self) -> None:
        self.driver.wait(self.chance.choice([0.1, 1.0, 2.0]))

    def edge(self) -> None:
        """All edges are done with all there is, now and then."""
        for edge in EDGES:
            self.done[edge] = self.driver.origin.head
            self.driver.carry(Done(self.done[edge]), edge)


def run_forgetful(seed: int) -> ForgetfulRun:
    made = ForgetfulRun(seed)
    for _ in range(STEPS):
        made.step()
    return made


def run_many_forgetful(seeds: int) -> list[ForgetfulRun]:
    return [run_forgetful(seed) for seed in range(seeds)]


def run(seed: int, options: Options) -> Run:
    made = Run(seed, options)
    for _ in range(STEPS):
        made.step()
    made.settle()
    return made


def run_many(seeds: int, options: Options) -> list[Run]:
    return [run(seed, options) for seed in range(seeds)]


@pytest.mark.parametrize("seed", range(60))
def test_promises_hold_over_crashes(seed: int) -> None:
    chance = random.Random(seed)
    recent, saved = chance.choice([4, 16, 4_096]), chance.choice([3, 12, 8_192])
    run(seed, Options(recent_ticks_max=recent, checkpoint_ticks=saved))


@pytest.mark.parametrize("seed", range(20))
def test_promises_hold_in_a_small_lossy_log(seed: int) -> None:
    made = run(
        seed,
        Options(recent_ticks_max=4, log_ticks_max=12, retention="lossy", checkpoint_ticks=5),
    )
    assert made.driver.origin.oldest > 1


@pytest.mark.parametrize("seed", range(40))
def test_promises_hold_when_publishers_are_forgotten(seed: int) -> None:
    run_forgetful(seed)


def test_forgetful_runs_are_worth_something() -> None:
    made = run_many_forgetful(10)
    assert sum(each.forgotten for each in made) > 30
    assert sum(each.crashes for each in made) > 20
    codes = [f.code for each in made for _, f in each.driver.sent if isinstance(f, PublishRefused)]
    assert codes.count(FORGOTTEN) > 30


@pytest.mark.parametrize("name", ["forgets-without-floor", "floor-not-on-disk"])
def test_mutant_that_forgets_too_much_is_objected_to(name: str) -> None:
    with planted(name), pytest.raises(AssertionError, match="an event is in the log twice"):
        run_many_forgetful(40)


def test_runs_are_worth_something() -> None:
    made = run_many(10, Options(recent_ticks_max=4))
    carried = [content for each in made for _, content in each.driver.carried]
    assert sum(each.crashes for each in made) > 20
    assert sum(len(each.driver.events) for each in made) > 500
    assert sum(each.driver.origin.oldest > 1 for each in made) > 2
    assert sum(isinstance(content, Answer | NotKept) for content in carried) > 0


@pytest.mark.parametrize(
    ("name", "objection"),
    [
        ("ack-before-sync", "confirmed before it is synced|a confirmed event is lost"),
        ("no-dedup", "an event is in the log twice"),
        ("vector-not-persisted", "a vector decreases"),
        ("emit-before-sync", "before it is synced"),
        ("release-early", "deletes what an edge may need"),
    ],
)
def test_mutant_is_objected_to(name: str, objection: str) -> None:
    with planted(name), pytest.raises(AssertionError, match=objection):
        run_many(20, Options())


def test_same_run_asks_for_the_same() -> None:
    one, other = run(7, Options()), run(7, Options())
    assert one.driver.emits == other.driver.emits
    assert one.driver.disk.records == other.driver.disk.records
    assert one.driver.carried == other.driver.carried
