"""A broker alone with its disk, whose catalog can be spoilt, and clients who want to be served.

`used_machine` has used every table of the catalog; what is in it is what a real broker put there.
"""

from collections.abc import Mapping
from typing import Literal, TypeVar

from anabranch.core import contract
from anabranch.core.broker import Broker, BrokerConfig
from anabranch.core.options import Options
from anabranch.core.origin.ledger import first_needed
from anabranch.model.client_frames import (
    Ack,
    AnyClientFrame,
    Commit,
    Committed,
    Confirmed,
    Connect,
    Define,
    Defined,
    Deliver,
    Drop,
    Dropped,
    Publish,
    Refused,
    Stage,
    Staged,
    Subscribe,
    Subscribed,
)
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.network import Network
from tests.staging_parts import draft

ALONE = Network({"a": ["a"]})
RISE = "low:{price < 20} THEN high:{price > 30} WITHIN 2 s"
#: A checkpoint early, and soon after it another.
OPTIONS = Options(checkpoint_ticks=4, mark_after_s=0.001, head_every_s=0.1)

Tables = dict[str, dict[str, bytes]]
Frame = TypeVar("Frame", bound=AnyClientFrame)


def copied(tables: Mapping[str, Mapping[str, bytes]]) -> Tables:
    return {table: dict(rows) for table, rows in tables.items()}


class Machine:
    """One broker, its disk, its clock and its clients."""

    def __init__(
        self,
        catalog: Mapping[str, Mapping[str, bytes]] | None = None,
        records: tuple[bytes, ...] = (),
        *,
        first_tick: int = 1,
        now: float = 1_000.0,
        damaged: tuple[contract.DamagedRecord, ...] = (),
        limits: Limits = DEFAULT_LIMITS,
        options: Options = OPTIONS,
        revision: int = 1,
    ) -> None:
        self.catalog = copied(catalog or {})
        self.records = list(records)
        self.first_tick = first_tick
        self.now = now
        self.notes: list[contract.Note] = []
        self.cuts: list[contract.Effect] = []
        self.sent: dict[int, list[AnyClientFrame]] = {}
        self._session = 0
        self._request = 0
        needed = first_tick if damaged else max(first_needed(self.catalog), first_tick)
        recovered = contract.Recovered(
            copied(self.catalog),
            first_tick,
            tuple(self.records[needed - first_tick :]),
            needed,
            damaged,
        )
        self.broker = Broker(
            BrokerConfig("a", ALONE, options=options, limits=limits, revision=revision),
            recovered,
            now,
        )
        self.tell(contract.Started())

    # -- the world --------------------------------------------------------------------------------

    def tell(self, stimulus: contract.Stimulus) -> None:
        waiting: list[contract.Stimulus] = [stimulus]
        while waiting:
            for effect in self.broker.handle(self.now, waiting.pop(0)):
                match effect:
                    case contract.Put():
                        rows = self.catalog.setdefault(effect.table, {})
                        rows.pop(effect.key, None)
                        if effect.value is not None:
                            rows[effect.key] = effect.value
                    case contract.Append():
                        self.records.append(effect.record)
                    case contract.Sync():
                        waiting.append(contract.Synced(effect.number))
                    case contract.Read():
                        first = effect.first - self.first_tick
                        found = self.records[first : effect.last + 1 - self.first_tick]
                        waiting.append(contract.LogRead(effect.request, effect.first, tuple(found)))
                    case contract.DeleteThrough():
                        gone = max(effect.tick + 1 - self.first_tick, 0)
                        del self.records[:gone]
                        self.first_tick += gone
                    case contract.SendClient():
                        self.sent.setdefault(effect.session, []).append(effect.frame)
                    case contract.Note():
                        self.notes.append(effect)
                    case contract.CutClient() | contract.CutLink():
                        self.cuts.append(effect)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        for _ in range(100_000):
            deadline = self.broker.next_deadline()
            if deadline is None or deadline > until:
                break
            self.now = max(self.now, deadline)
            self.tell(contract.TimePassed())
        else:
            raise AssertionError("deadlines never end")
        self.now = until

    def errors(self) -> list[str]:
        return [note.text for note in self.notes if note.level == "error"]

    def again(self, *, limits: Limits = DEFAULT_LIMITS, revision: int = 1) -> "Machine":
        """The next life, a while later."""
        return Machine(
            self.catalog,
            tuple(self.records),
            first_tick=self.first_tick,
            now=self.now + 10.0,
            limits=limits,
            revision=revision,
        )

    # -- clients ----------------------------------------------------------------------------------

    def connect(self, client: str) -> int:
        self._session += 1
        self.tell(contract.ClientConnected(self._session))
        self.say(self._session, Connect(PROTOCOL_VERSION, client))
        return self._session

    def say(self, session: int, frame: AnyClientFrame) -> None:
        self.tell(contract.ClientFrameReceived(session, frame))

    def tell_together(self, session: int, *frames: AnyClientFrame) -> None:
        """The client says all of it before the disk has synced anything."""
        waiting: list[contract.Stimulus] = []
        for frame in frames:
            for effect in self.broker.handle(
                self.now, contract.ClientFrameReceived(session, frame)
            ):
                if isinstance(effect, contract.Sync):
                    waiting.append(contract.Synced(effect.number))
                elif isinstance(effect, contract.Put):
                    rows = self.catalog.setdefault(effect.table, {})
                    rows.pop(effect.key, None)
                    if effect.value is not None:
                        rows[effect.key] = effect.value
                elif isinstance(effect, contract.SendClient):
                    self.sent.setdefault(effect.session, []).append(effect.frame)
        for stimulus in waiting:
            self.tell(stimulus)

    def leave(self, session: int) -> None:
        self.tell(contract.ClientDisconnected(session))

    def request(self) -> int:
        self._request += 1
        return self._request

    def heard(self, session: int, kind: type[Frame]) -> list[Frame]:
        return [frame for frame in self.sent.get(session, []) if isinstance(frame, kind)]

    def delivered(self, session: int) -> list[int]:
        """The ticks of all events that were delivered, in order."""
        return [
            datum.tick
            for frame in self.heard(session, Deliver)
            for matches in frame.matches
            for datum in matches.data
        ]

    def publish(self, session: int, publisher: str, incarnation: int, *sequences: int) -> None:
        bodies = [
            encode_event(Event({"price": each}, id=EventId(publisher, incarnation, each)))
            for each in sequences
        ]
        self.say(session, Publish(bodies))
        self.wait(0.5)

    def subscribe(
        self,
        session: int,
        name: str,
        text: str = "price > 0",
        *,
        start: Literal["now", "resume"] = "now",
        number: int = 0,
    ) -> None:
        frame = Subscribe(self.request(), name, text, "durable", start=start, number=number)
        self.say(session, frame)
        self.wait(0.5)


def used_machine() -> Machine:
    """A broker that has used every table but `set_aside`. Of the publishers, `early` has no event
    in the log any more."""
    machine = Machine()
    session = machine.connect("worker")
    machine.subscribe(session, "audit", number=1)
    machine.subscribe(session, "slow", number=1)
    early, feed = machine.connect("early"), machine.connect("feed")
    machine.publish(early, "early", 1, 1, 2, 3)
    newest = machine.delivered(session)[-1]
    machine.say(session, Ack({"a": {"audit": newest, "slow": newest}}))
    machine.wait(2.0)
    assert machine.first_tick > 1
    machine.publish(feed, "feed", 1, 1, 2, 3, 4, 5)
    machine.say(session, Ack({"a": {"audit": machine.first_tick + 1}}))
    machine.wait(1.0)
    machine.publish(feed, "feed", 1, 6, 7)
    for pattern in ("rise", "gone"):
        machine.say(session, Define(machine.request(), pattern, RISE, is_new=True))
        machine.wait(1.0)
    machine.say(session, Drop(machine.request(), "gone"))
    machine.wait(1.0)
    machine.say(session, Stage(machine.request(), "done", 0, [draft(1), draft(2)], True))
    machine.say(session, Commit(machine.request(), "sink", "q", 1, ("done",)))
    machine.wait(1.0)
    for index in range(3):
        staged = [draft(10 + index)]
        machine.say(session, Stage(machine.request(), "open", index, staged, index == 2))
    machine.wait(1.0)
    kinds = {type(frame) for frame in machine.sent[session]}
    assert {Subscribed, Defined, Dropped, Staged, Committed} <= kinds
    assert machine.heard(early, Confirmed)
    assert machine.heard(feed, Confirmed)
    assert Refused not in kinds, machine.heard(session, Refused)
    return machine


def confirmations(machine: Machine, session: int) -> list[tuple[str, int, int]]:
    """What was confirmed, each at a synced tick."""
    frames = machine.heard(session, Confirmed)
    assert machine.broker.origin is not None
    assert all(1 <= frame.tick <= machine.broker.origin.head for frame in frames)
    return [(frame.publisher, frame.incarnation, frame.sequence) for frame in frames]


def serves(machine: Machine) -> None:
    """An honest publisher and an honest subscriber get what they want."""
    subscriber = machine.connect("honest-subscriber")
    publisher = machine.connect("honest")
    machine.subscribe(subscriber, "honest", "price > 100", number=1)
    # By its clock, which is right.
    incarnation = int((machine.now + 1.0) * 1e9)
    machine.publish(publisher, "honest", incarnation, 1)
    bodies = [
        encode_event(Event({"price": 200 + each}, id=EventId("honest", incarnation, each)))
        for each in range(2, 6)
    ]
    machine.say(publisher, Publish(bodies))
    machine.wait(2.0)
    confirmed = confirmations(machine, publisher)
    assert confirmed
    assert confirmed[-1] == ("honest", incarnation, 5)
    assert len(machine.delivered(subscriber)) == 4
    assert not machine.cuts, machine.cuts
