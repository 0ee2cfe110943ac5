"""One simulation: a seed in, a verdict out.

A phase with faults comes first. Then everything is healed, applications become calm, and within
`settle_s` every guarantee must be met; the checker reads the history and reports violations. During
the run the interest of all brokers is checked: a broker must forward every event of the
subscriptions that it claims to cover (the S-Λ invariant).
"""

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from anabranch.check import history as told
from anabranch.check.checker import Anomaly, check
from anabranch.core.broker import BrokerConfig
from anabranch.core.origin.ledger import LogStart
from anabranch.core.origin.log_tail import (
    LOST_PUBLISHER,
    BlankRecord,
    EventRecord,
    LifeRecord,
    MarkRecord,
    RowsRecord,
    decode_record,
)
from anabranch.core.replication.placement import all_keepers
from anabranch.core.routing.registry import RouterMaker
from anabranch.model.encoding import decode_envelope
from anabranch.model.limits import Limits
from anabranch.model.names import JOIN_POINT_PREFIX
from anabranch.sim.applications import Application, SimPublisher
from anabranch.sim.copy_read_watch import CopyReadWatch
from anabranch.sim.copy_watch import PathWatch
from anabranch.sim.disk_losses import DiskLosses
from anabranch.sim.faults import Division, Faults
from anabranch.sim.interest_watch import InterestWatch
from anabranch.sim.load_reports import BrokerLoadReports, LinkLoadReports
from anabranch.sim.network_changes import Reconfiguration
from anabranch.sim.pattern_users import Definer, Detections, draw_definers
from anabranch.sim.rollbacks import Rollbacks
from anabranch.sim.sinks import SimSink, draft_in
from anabranch.sim.subscribers import SimSubscriber
from anabranch.sim.swarm import Plan
from anabranch.sim.verdict import SimVerdict
from anabranch.sim.world import CLOCK_BEGIN_S, Weather, World

_WARM_UP_S = 0.5
_LOADS_EVERY_S = 0.1
_MOODS_EVERY_S = 0.4
#: How often somebody looks whether a join point should move, for each pattern.
_MOVES_PER_S = 0.3
#: How long after healing publishers go on.
_MORE_S = 1.5
#: Logs that may hold as many ticks never get full here.
_ROOMY_TICKS = 100_000
#: The same of a quota of bytes held back.
_ROOMY_BYTES = 1 << 30

_beginnings = msgspec.msgpack.Decoder(LogStart)


class Simulation:
    """One seed's network and what happens in it.

    Brokers get the routers that `router` makes, if there is one, in place of the plan's."""

    def __init__(self, plan: Plan, router: RouterMaker | None = None) -> None:
        self.plan = plan
        self.rng = Random(plan.seed ^ 0x5EED)
        limits = Limits(pattern_matches_max=plan.matches_max)
        parts = (plan.network, plan.routing, plan.options, limits)
        keepers = all_keepers(plan.network, lambda _edge: plan.options)
        configs = [
            BrokerConfig(name, *parts, router=router, keepers=keepers)
            for name in plan.network.brokers
        ]
        self.world = World(configs, self.rng, Weather())
        self.world.more = Random(plan.seed ^ 0xFACE)
        self.world.on_forgetting = self._forgetting
        #: Stream → what is deleted.
        self._deleted: dict[str, int] = {}
        #: Stream → what is deleted, or about to be.
        self._gone: dict[str, int] = {}
        self._settled: float | None = None
        self._healed_s = 0.0
        # A tree needs all links, and any may be needed where the network becomes another one.
        by_all_links = plan.routing != "mesh" or plan.faults.reconfigure > 0
        chance = Random(plan.seed ^ 0xD171)
        division = Division(self.world, chance, by_all_links=by_all_links)
        self.faults = Faults(self.world, plan.network, plan.faults, division)
        operator = Random(plan.seed ^ 0xB055)
        self.reconfiguring = Reconfiguration(
            self.world, plan.network, operator, self._stream_joined
        )
        self.history: list[told.Record] = []
        self.applications: list[Application] = []
        self.definers: list[Definer] = []
        self._detections = Detections(self.world, self.definers, plan.matches_max)
        self._moving = Random(plan.seed ^ 0x30E5)
        self.interest_changes = 0
        self.troubled_changes = 0
        self._watch = InterestWatch(self.world)
        self.paths: PathWatch | None = None
        self._moods: BrokerLoadReports | None = None
        if plan.routing == "mesh":
            LinkLoadReports(self.world, _LOADS_EVERY_S)
            if plan.patterns:
                moody = Random(plan.seed ^ 0x300D)
                self._moods = BrokerLoadReports(self.world, _MOODS_EVERY_S, moody)
            self.paths = PathWatch(self.world, is_fixed=plan.options.paths == "fixed")
            self.world.watcher = self.paths.step
        self.rollbacks = Rollbacks(
            self.world, plan.network, self.history, Random(plan.seed ^ 0x0B4C)
        )
        self.copy_reads = CopyReadWatch(self.world, lambda stream: self._gone.get(stream, 0))
        if plan.options.copies > 1:
            self.copy_reads.next = self.world.watcher
            self.world.watcher = self.copy_reads.step
        self.disk_losses = DiskLosses(self.world, self.history, Random(plan.seed ^ 0xD15C))
        self._is_calm = False

    def run(self) -> SimVerdict:
        """Run the simulation. An exception of a broker or client is an anomaly too."""
        try:
            self._live()
            anomalies = self._judged()
        except Exception as error:  # noqa: BLE001 - a seed that breaks our code must be named
            anomalies = [Anomaly("exception", "", "", 0, _where(error))]
        return self._verdict(anomalies)

    def _live(self) -> None:
        world, plan = self.world, self.plan
        for name in plan.network.brokers:
            world.after(self.rng.random() * 0.05, world.start, name)
        world.run_until(_WARM_UP_S)
        self._populate()
        self.faults.begin()
        self.reconfiguring.begin(plan.faults.reconfigure)
        self.rollbacks.begin(plan.faults.rollback)
        self.disk_losses.begin(plan.faults.lose_disk, plan.faults.roll_back_disk)
        self._repeat(plan.churn, self._churn)
        self._repeat(plan.restless, self._unrest)
        self._repeat(plan.patterns * _MOVES_PER_S, self._move_patterns)
        world.after(0.4, self._look)
        world.run_until(plan.fault_s)
        self.faults.heal()
        self.rollbacks.heal()
        self.disk_losses.heal()
        self._is_calm = True
        for application in self.applications:
            if isinstance(application, SimSubscriber):
                application.calm()
        self._detections.calm()
        if self._moods is not None:
            self._moods.is_calm = True
        self._finish_change()
        self.history.append(told.Healed(world.now))
        self._healed_s = world.now
        world.run_until(self._healed_s + _MORE_S)
        for application in self.applications:
            application.calm()
        self._settle()
        # What ended last is still being told.
        world.run_until(world.now + 1.0)
        if self.definers and not self._is_claimed():
            # A pattern may have found a better place just now.
            self._go_on(world.now + 10.0, self._is_claimed)

    def _finish_change(self) -> None:
        """A change of the network that is under way comes to its end."""
        self.reconfiguring.end()
        while self.reconfiguring.is_busy:
            self.world.run_until(self.world.now + 0.5)

    # -- applications ---------------------------------------------------------------------------

    def _populate(self) -> None:
        edges = list(self.plan.network.edges)
        victim = self.rollbacks.victim if self.plan.faults.rollback else ""
        for number in range(self.plan.publishers):
            home = victim or self.rng.choice(edges)
            name = f"pub{number}"
            publisher = SimPublisher(
                self.world,
                name,
                home,
                self.history,
                rate=self.plan.rate,
                # What is in reach changes with the network.
                limited=0.0 if self.plan.faults.reconfigure else self.plan.limited_events,
                clients=[f"sub{number}" for number in range(self.plan.subscribers)],
                advertising=self._advertising(number),
                wandering=self.plan.wandering,
                moving=Random(self.plan.seed ^ 0x0DE5 ^ number << 20),
                absences=self.plan.absences,
                leaving=Random(self.plan.seed ^ 0x1EA4 ^ number << 20),
            )
            self.applications.append(publisher)
        options = self.plan.options
        is_tight = options.retention == "refuse" and options.log_ticks_max < _ROOMY_TICKS
        for number in range(self.plan.subscribers):
            home = self.rng.choice([edge for edge in edges if edge != victim])
            subscriber = SimSubscriber(
                self.world,
                f"sub{number}",
                home,
                self.history,
                explicit=self.plan.explicit_starts,
                leaves_nothing=is_tight,
            )
            self.applications.append(subscriber)
            for _ in range(self._first_subscriptions(number)):
                subscriber.subscribe(self.rng)
        more = Random(self.plan.seed ^ 0x51CC)
        for number in range(self.plan.sinks):
            home = more.choice(edges)
            rate = self.plan.batch_rate
            sink = SimSink(self.world, f"sink{number}", home, self.history, more, rate=rate)
            self.applications.append(sink)
        self.definers += draw_definers(self.world, self.plan, edges, self.history)
        self.applications += self.definers
        for application in self.applications:
            application.connect_in(self.rng.random() * 0.2)

    def _advertising(self, number: int) -> Random | None:
        """What decides about a publisher's advertisements, if it makes any."""
        rng = Random(self.plan.seed ^ 0xADD5 ^ number << 20)
        return rng if rng.random() < self.plan.advertising else None

    def _first_subscriptions(self, number: int) -> int:
        """How many a subscriber makes at the start."""
        plan = self.plan
        if not plan.subscriptions:
            return self.rng.randint(1, 4)
        each, rest = divmod(plan.subscriptions, plan.subscribers)
        return each + (number < rest)

    def _repeat(self, rate: float, action: Callable[[], None]) -> None:
        if rate > 0 and not self._is_calm:
            self.world.after(self.rng.expovariate(rate), action)

    def _churn(self) -> None:
        if self._is_calm:
            return
        subscribers = [each for each in self.applications if isinstance(each, SimSubscriber)]
        self.rng.choice(subscribers).churn(self.rng)
        self.interest_changes += 1
        self.troubled_changes += self.faults.is_on()
        self._repeat(self.plan.churn, self._churn)

    def _unrest(self) -> None:
        if self._is_calm:
            return
        who = self.rng.choice(self.applications)
        who.act(self.rng, self.reconfiguring.open_edges())
        self._repeat(self.plan.restless, self._unrest)

    def _move_patterns(self) -> None:
        if self._is_calm:
            return
        self._detections.move_one(self._moving, self.reconfiguring.open_edges())
        self._repeat(self.plan.patterns * _MOVES_PER_S, self._move_patterns)

    def _look(self) -> None:
        self._watch.look()
        self._watch.anomalies += self.disk_losses.look()
        self.world.after(0.4, self._look)

    def _stream_joined(self, stream: str) -> None:
        self.history.append(told.Joined(self.world.now, stream))

    def _forgetting(self, stream: str, what: bytes | int) -> None:
        """A log has deleted up to a tick, or decided to."""
        now = self.world.now
        tick = what if isinstance(what, int) else _beginnings.decode(what).deleted
        self._gone[stream] = max(self._gone.get(stream, 0), tick)
        if isinstance(what, int):
            self._deleted[stream] = what
            self.history.append(told.Forgotten(stream, what, "deleted", now))
            return
        options = self.plan.options
        ticks = self._head(stream) - self._deleted.get(stream, 0)
        is_over = ticks >= options.log_ticks_max or options.log_age_s_max is not None
        has_quota = options.held_back_max < _ROOMY_BYTES
        is_lossy = has_quota or (options.retention == "lossy" and is_over)
        why: Literal["lossy", "released"] = "lossy" if is_lossy else "released"
        self.history.append(told.Forgotten(stream, tick, why, now))

    # -- the end --------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let the world go on until everybody has everything, or for as long as it may take."""
        world = self.world
        end_s = self._healed_s + self.plan.settle_s
        if self._go_on(end_s, self._is_settled):
            self._settled = world.now
            # A subscription whose client has everything may still be on its way between edges.
            if not self._is_claimed():
                self._go_on(end_s, self._is_claimed)

    def _go_on(self, end_s: float, is_enough: Callable[[], bool]) -> bool:
        """Let the world go on until this is so, but no longer; returns whether it is."""
        world = self.world
        while world.now < end_s:
            world.run_until(min(end_s, world.now + 0.5))
            if is_enough():
                return True
        return False

    def _is_claimed(self) -> bool:
        brokers = [host.broker for host in self.world.hosts.values()]
        edges = [broker.edge for broker in brokers if broker is not None]
        is_claimed = not any(edge.unclaimed() for edge in edges if edge is not None)
        return is_claimed and self._detections.is_settled()

    def _is_settled(self) -> bool:
        heads = {edge: self._head(edge) for edge in self.reconfiguring.network.edges}
        settled = [
            application.is_settled(heads)
            for application in self.applications
            if isinstance(application, SimPublisher | SimSubscriber)
        ]
        is_detected = self._detections.is_settled()
        return is_detected and all(settled) and all(sink.is_settled() for sink in self._sinks())

    def _sinks(self) -> list[SimSink]:
        return [each for each in self.applications if isinstance(each, SimSink)]

    def _unfinished(self) -> list[Anomaly]:
        """Sinks that are not done although all is well."""
        return [
            Anomaly("stuck", "", sink.home, 0, f"{sink.sink} waits for its batch")
            for sink in self._sinks()
            if not sink.is_settled()
        ]

    def _head(self, edge: str) -> int:
        return self.world.hosts[edge].disk.head()

    def _judged(self) -> list[Anomaly]:
        world = self.world
        self._watch.look_for_leftovers()
        self._watch.look_for_owners()
        self._watch.look_for_vectors()
        if self.paths is not None:
            self.paths.look_for_two_parents()
            self._watch.anomalies += self.paths.anomalies
        # A start at a time may come as early as the first tick that is not confirmed yet, and while
        # copies are away that is not confirmed for long.
        has_times = self.plan.faults.clock_jump == 0 and self.plan.options.confirm == 1
        for edge in self.reconfiguring.streams:
            disk = world.hosts[edge].disk
            self.history += _logged(edge, disk.ever_synced.items(), has_times)
        edges = self.reconfiguring.network.edges
        self.history.append(told.Finished(world.now, edges, self._settled))
        breaches = [Anomaly("protocol-error", "", "", 0, text) for text in world.count.breaches]
        found = [*self._watch.anomalies, *breaches, *self._repetitions(), *self._unfinished()]
        found += self._reused()
        found += self.disk_losses.missing()
        found += self.copy_reads.anomalies
        found += self._detections.judged(list(self.reconfiguring.streams))
        return [*found, *check(self.history)]

    def _verdict(self, anomalies: list[Anomaly]) -> SimVerdict:
        world = self.world
        kinds = [type(record) for record in self.history]
        return SimVerdict(
            seed=self.plan.seed,
            anomalies=tuple(anomalies),
            simulated_s=world.now,
            brokers=len(world.hosts),
            published=kinds.count(told.Published),
            deliveries=kinds.count(told.Delivered),
            crashes=world.count.kills,
            partitions=sum(self.faults.counts.get(kind, 0) for kind in ("partition", "one-way")),
            lost_frames=world.count.lost_frames,
            interest_changes=self.interest_changes,
            troubled_changes=self.troubled_changes,
            steps=world.count.steps,
            digest=world.digest.with_history(self.history),
            faults=dict(sorted(self._fault_counts().items())),
            batches=kinds.count(told.BatchTold),
            matches=self._detections.reported,
            forgotten=sum(a.forgotten for a in self.applications if isinstance(a, SimPublisher)),
            advertised=sum(a.advertised for a in self.applications if isinstance(a, SimPublisher)),
            splits=0 if self.paths is None else self.paths.splits,
            moves=0 if self.paths is None else self.paths.moves,
            lost_disks=self.disk_losses.count,
            fetches=world.count.fetches,
            lives=sum(map(len, self._lives())),
            set_changes=sum(map(_set_changes, self._lives())),
            kept_reads=self.copy_reads.events_while_down,
        )

    def _lives(self) -> Iterator[list[LifeRecord]]:
        """The lives of each stream that were confirmed."""
        for host in self.world.hosts.values():
            records = (decode_record(data) for _, data in sorted(host.disk.ever_synced.items()))
            yield [record for record in records if isinstance(record, LifeRecord)]

    def _fault_counts(self) -> dict[str, int]:
        counts = self.faults.counts | self.reconfiguring.counts
        if self.rollbacks.count:
            counts["rollback"] = self.rollbacks.count
        if self.disk_losses.count:
            counts["lose-disk"] = self.disk_losses.count
        if self.disk_losses.set_back:
            counts["roll-back-disk"] = self.disk_losses.set_back
        return counts

    def _reused(self) -> list[Anomaly]:
        """Ticks that a log gave out twice, for an event or a mark; seen on the disks."""
        hosts = [(edge, self.world.hosts[edge]) for edge in self.reconfiguring.streams]
        return [
            Anomaly("tick-reused", "", edge, tick, "the tick had another content before")
            for edge, host in hosts
            for tick, _ in host.disk.reused
        ]

    def _repetitions(self) -> list[Anomaly]:
        """What edges sent twice over one connection."""
        return [
            Anomaly("repeated", each.subscription, each.stream, each.tick, "sent twice")
            for application in self.applications
            if isinstance(application, SimSubscriber)
            for each in application.repeated
        ]


def _logged(
    stream: str, records: Iterable[tuple[int, bytes]], has_times: bool
) -> list[told.Record]:
    """The events of a log."""
    found: list[told.Record] = []
    for tick, data in records:
        record = decode_record(data)
        if isinstance(record, MarkRecord | LifeRecord | RowsRecord):
            continue
        if isinstance(record, BlankRecord) and record.id.publisher == LOST_PUBLISHER:
            continue
        draft = None
        if isinstance(record, EventRecord):
            envelope = decode_envelope(record.body)
            event_id, draft = envelope.id, draft_in(envelope.attributes())
        else:
            event_id = record.id
        if event_id.publisher.startswith(JOIN_POINT_PREFIX):
            # A notification; see `detecting`.
            continue
        publisher = (event_id.publisher, event_id.incarnation, event_id.sequence)
        time = record.time_ns / 1e9 - CLOCK_BEGIN_S if has_times else None
        found.append(told.Logged(stream, tick, *publisher, time, draft))
    return found


def _set_changes(lives: Sequence[LifeRecord]) -> int:
    """How many lives have other copies than the one before."""
    return sum(set(a.copies.members) != set(b.copies.members) for a, b in pairwise(lives))


def _where(error: Exception) -> str:
    """An error in one line, with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} ({frames[-1].name})"
    return f"{type(error).__name__} in {place}: {error}"
