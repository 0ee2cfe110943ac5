"""Client sessions against the plainest broker that could be, over connections that break.

Hypothesis chooses what happens; the broker below does only what the protocol allows. Whatever it
is, a publisher's events are logged once and in order, and a durable subscriber gets every tick once
and in order.
"""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.session.effects import (
    EventDelivered,
    EventsConfirmed,
    SendFrame,
    SessionEffects,
    SessionOptions,
)
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import (
    Ack,
    AnyClientFrame,
    Confirmed,
    Deliver,
    Matches,
    Publish,
    PublishRefused,
    StartsAt,
    Subscribe,
    Subscribed,
)
from anabranch.model.encoding import decode_event
from anabranch.model.event import Event
from anabranch.model.frame_parts import Datum

OPTIONS = SessionOptions(in_flight_max=3, frame_events_max=2, resend_after_s=5.0)
TICKS = 12


class PlainOrigin:
    """A log of sequences, some of them not synced yet."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.synced = 0

    def take(self, frame: Publish, is_full: bool) -> list[AnyClientFrame]:
        answers: list[AnyClientFrame] = []
        for body in frame.bodies:
            event_id = decode_event(body).id
            assert event_id is not None
            sequence = event_id.sequence
            if sequence <= len(self.log):
                answers.append(Confirmed("p", 1, self.synced))
            elif is_full or sequence > len(self.log) + 1:
                answers.append(PublishRefused("p", 1, sequence, "later"))
            else:
                self.log.append(sequence)
        return answers

    def crash(self, kept: int) -> None:
        self.log = self.log[: max(self.synced, len(self.log) - kept)]
        self.synced = len(self.log)


@given(st.data())
def test_every_event_is_logged_once_and_in_order(data: st.DataObject) -> None:
    session, origin = ClientSession("p", incarnation=1, options=OPTIONS), PlainOrigin()
    to_broker: list[AnyClientFrame] = []
    to_client: list[AnyClientFrame] = []
    now, published, confirmed = 0.0, 0, 0

    def perform(effects: SessionEffects) -> None:
        nonlocal confirmed
        for effect in effects:
            if isinstance(effect, SendFrame):
                to_broker.append(effect.frame)
            elif isinstance(effect, EventsConfirmed):
                confirmed = effect.sequence
        assert confirmed <= origin.synced

    def step(action: str) -> None:
        nonlocal now, published
        now += 1.0
        if action == "publish" and session.has_room():
            perform(session.publish(now, Event({"n": published}))[1])
            published += 1
        elif action in {"broker", "full"} and to_broker:
            frame = to_broker.pop(0)
            if isinstance(frame, Publish):
                to_client.extend(origin.take(frame, action == "full"))
        elif action == "sync":
            origin.synced = len(origin.log)
            to_client.append(Confirmed("p", 1, origin.synced))
        elif action == "client" and to_client and session.is_connected:
            perform(session.frame(now, to_client.pop(0)))
        elif action in {"cut", "crash"}:
            perform(session.disconnected(now))
            to_broker.clear()
            to_client.clear()
            if action == "crash":
                origin.crash(kept=len(origin.log) // 2)
            perform(session.connected(now))
        perform(session.time_passed(now))

    actions = ("publish", "publish", "broker", "broker", "full", "sync", "client", "cut", "crash")
    perform(session.connected(now))
    for action in data.draw(st.lists(st.sampled_from(actions), max_size=60)):
        step(action)
        assert origin.log == list(range(1, len(origin.log) + 1))
    for _ in range(20 * (published + 2)):
        step("broker")
        step("sync")
        step("client")
    assert (confirmed, len(origin.log)) == (published, published)
    assert session.may_move_publisher()


class PlainEdge:
    """Delivers ticks 1 … TICKS of one stream after where its subscriber says it stands."""

    def __init__(self) -> None:
        self.number = 0
        self.position = 0
        self.window_from = 0

    def take(self, frame: AnyClientFrame) -> list[AnyClientFrame]:
        if isinstance(frame, Ack):
            assert self.window_from <= frame.ticks["o"]["s"] <= self.position
            self.window_from = frame.ticks["o"]["s"]
        if not isinstance(frame, Subscribe):
            return []
        assert frame.number > self.number
        self.number = frame.number
        self.position = self.window_from = frame.ticks.get("o", 0)
        answer = Subscribed(frame.request, "s", frame.number, {"o": self.position})
        return [answer] if frame.start == "resume" else [answer, StartsAt("s", "o", 1)]

    def deliver(self, count: int, repeated: int) -> Deliver:
        first = max(1, self.position + 1 - repeated)
        self.position = min(self.position + count, TICKS)
        ticks = range(first, self.position + 1)
        data = [Datum(tick, 0, b"") for tick in ticks]
        return Deliver("o", [Matches("s", max(1, self.position), data)])


@given(st.data())
def test_every_tick_is_delivered_once_and_in_order_through_cuts_and_roams(
    data: st.DataObject,
) -> None:
    manual = data.draw(st.booleans())
    session, edge = ClientSession("c"), PlainEdge()
    to_client: list[AnyClientFrame] = []
    given_ticks: list[int] = []
    now = 0.0

    def perform(effects: SessionEffects) -> None:
        for effect in effects:
            if isinstance(effect, EventDelivered):
                given_ticks.append(effect.tick)
            elif isinstance(effect, SendFrame):
                to_client.extend(edge.take(effect.frame))

    def step(action: str) -> None:
        nonlocal now, session
        now += 1.0
        if action == "deliver" and edge.number:
            to_client.append(edge.deliver(count=3, repeated=data.draw(st.integers(0, 2))))
        elif action == "client" and to_client:
            perform(session.frame(now, to_client.pop(0)))
        elif action == "ack" and given_ticks:
            perform(session.ack(now, {"s": {"o": data.draw(st.sampled_from(given_ticks))}}))
        elif action in {"cut", "roam"}:
            to_client.clear()
            if action == "roam":
                resume_point = session.release("s")
                session = ClientSession("c")
                session.resume(now, resume_point)
            else:
                perform(session.disconnected(now))
            perform(session.connected(now))
        perform(session.time_passed(now))
        assert given_ticks == list(range(1, len(given_ticks) + 1))

    perform(session.connected(now))
    perform(session.subscribe(now, "s", "TRUE", quality="durable", manual_ack=manual))
    actions = ("deliver", "deliver", "client", "client", "ack", "cut", "roam")
    for action in data.draw(st.lists(st.sampled_from(actions), max_size=40)):
        step(action)
    for _ in range(3 * TICKS):
        step("client")
    for _ in range(2 * TICKS):
        step("deliver")
        step("client")
    assert given_ticks == list(range(1, TICKS + 1))
