"""Work of the core in slices: order, heartbeats and promises hold between them."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from anabranch.core import contract
from anabranch.core.broker import Broker, BrokerConfig
from anabranch.core.contract import Recovered
from anabranch.core.options import Options
from anabranch.core.patterns.join_points import definitions, records
from anabranch.core.routing.contract import WorkDone
from anabranch.model import filter as filter_module
from anabranch.model.client_frames import (
    Ack,
    Alive,
    AnyClientFrame,
    Confirmed,
    Connect,
    Define,
    Defined,
    Deliver,
    Publish,
    Refused,
    Stage,
    Staged,
    Subscribe,
    Subscribed,
)
from anabranch.model.encoding import decode_event, encode_draft, encode_event
from anabranch.model.event import Event, EventId, Value
from anabranch.model.frames import PROTOCOL_VERSION, Hello, Ping
from anabranch.model.language.parser import parse_expression
from anabranch.model.limits import Limits
from tests.process_parts import PAIR, network_file

ALONE = """
[network]
name = "alone"
[tree]
B1 = []
"""
#: As little as can be done at a time.
SLICED = Options(step_work_max=1)


class Rig:
    """One edge, of two where nothing else is said, whose disk is done with everything at once."""

    def __init__(self, options: Options, text: str = PAIR) -> None:
        alone = replace(options, start_alone_after_s=0.01)
        config = BrokerConfig("B1", network_file(text).network, "tree", alone)
        self.broker = Broker(config, Recovered(), 0.0)
        self.now = 0.0
        self.effects: list[contract.Effect] = []
        self.handle(contract.Started())
        self.finish()
        self.now = 0.02
        self.finish()

    def handle(self, stimulus: contract.Stimulus) -> list[contract.Effect]:
        """One call, and what it brought."""
        found = list(self.broker.handle(self.now, stimulus))
        self.effects += found
        for effect in found:
            if isinstance(effect, contract.Sync):
                self.handle(contract.Synced(effect.number))
        return found

    def finish(self) -> int:
        """Let it work until it has nothing left; in how many calls."""
        calls = 0
        while (at := self.broker.next_deadline()) is not None and at <= self.now:
            self.handle(contract.TimePassed())
            calls += 1
            assert calls < 100_000
        return calls

    def come(self, session: int, client: str) -> None:
        self.handle(contract.ClientConnected(session))
        self.say(session, Connect(PROTOCOL_VERSION, client))

    def say(self, session: int, frame: AnyClientFrame) -> list[contract.Effect]:
        return self.handle(contract.ClientFrameReceived(session, frame))

    def told(self, session: int, kind: type) -> list[object]:
        sent = (e for e in self.effects if isinstance(e, contract.SendClient))
        return [e.frame for e in sent if e.session == session and isinstance(e.frame, kind)]


def boxes(number: int) -> str:
    return " OR ".join(f"(a = {n} AND b > {n})" for n in range(number))


def test_a_large_filter_takes_many_calls_and_its_answer_comes_once() -> None:
    rig = Rig(SLICED)
    rig.come(1, "c")
    rig.finish()
    rig.say(1, Subscribe(1, "s", boxes(100), "reliable"))
    assert rig.broker.is_working
    assert rig.finish() > 100
    assert len(rig.told(1, Subscribed)) == 1


def test_neighbours_and_clients_hear_of_a_broker_that_is_at_work() -> None:
    rig = Rig(SLICED)
    rig.handle(contract.LinkUp("B2"))
    rig.handle(contract.FrameReceived("B2", Hello(PROTOCOL_VERSION, "B2", 1)))
    rig.come(1, "c")
    rig.come(2, "d")
    rig.finish()
    rig.say(1, Subscribe(1, "s", boxes(500), "reliable"))
    sent: list[contract.Effect] = []
    while rig.broker.is_working and rig.now < 20.0:
        rig.now += 0.1
        rig.handle(contract.FrameReceived("B2", Ping()))
        sent += rig.handle(contract.TimePassed())
    assert rig.now > 5.0
    assert sum(isinstance(e, contract.Send) and isinstance(e.frame, Ping) for e in sent) > 5
    assert not [e for e in rig.effects if isinstance(e, contract.CutLink)]
    assert contract.SendClient(2, Alive()) in rig.say(2, Alive())


def test_what_comes_while_the_core_works_is_handled_afterwards_and_in_order() -> None:
    rig = Rig(SLICED)
    for session in (1, 2):
        rig.come(session, f"c{session}")
    rig.finish()
    rig.say(1, Subscribe(1, "large", boxes(50), "reliable"))
    rig.say(2, Subscribe(1, "x", "a = 1", "reliable"))
    rig.say(2, Subscribe(2, "y", "a = 2", "reliable"))
    assert not rig.told(2, Subscribed)
    rig.finish()
    answers = [e for e in rig.effects if isinstance(e, contract.SendClient)]
    named = [e.frame.subscription for e in answers if isinstance(e.frame, Subscribed)]
    assert named == ["large", "x", "y"]


@pytest.mark.parametrize("work", [1, 50, 20_000])
def test_every_subscription_gets_every_match_however_small_the_slices(work: int) -> None:
    rig = Rig(Options(step_work_max=work))
    rig.come(1, "c")
    rig.finish()
    for n in range(30):
        rig.say(1, Subscribe(n + 1, f"s{n}", f"text LIKE '%{n}_z' OR m > {n}", "reliable"))
    for _ in range(5):
        rig.finish()
        rig.now += 0.2
    bodies = []
    for n in range(20):
        event = Event({"m": n, "text": f"{n}!z"}).stamped(EventId("c", 1, n + 1), 1)
        bodies.append(encode_event(event))
    rig.say(1, Publish(bodies))
    for _ in range(5):
        rig.finish()
        rig.now += 0.2
    got = {f"s{n}": [] for n in range(30)}  # type: dict[str, list[int]]
    for _, name, ticks in deliveries(rig):
        got[name] += ticks
    for n in range(30):
        wanted = [m for m in range(20) if m > n or f"{m}!z".endswith(f"{n}!z")]
        assert len(got[f"s{n}"]) == len(wanted), n
        assert got[f"s{n}"] == sorted(got[f"s{n}"])


@pytest.mark.parametrize("work", [1, 50, 20_000])
def test_a_join_point_gets_every_match_however_small_the_slices(work: int) -> None:
    rig = Rig(Options(step_work_max=work), ALONE)
    rig.come(1, "c")
    rig.say(1, Define(1, "p", "a:{text LIKE '%!_z'} WITHIN 1 s"))
    rig.finish()
    rig.say(1, Subscribe(1, "s", "[anabranch.pattern] = 'p'", "reliable"))
    for _ in range(5):
        rig.finish()
        rig.now += 0.2
    rig.say(1, Publish([body("c", n + 1, {"text": f"{n}!!z"}) for n in range(20)]))
    for _ in range(20):
        rig.finish()
        rig.now += 0.2
    assert sum(len(ticks) for _, _, ticks in deliveries(rig)) == 20
    sent = [e for e in rig.effects if isinstance(e, contract.SendClient | contract.CutClient)]
    assert all(e.session >= 0 for e in sent)


def deliveries(rig: Rig) -> Iterator[tuple[int, str, list[int]]]:
    for effect in rig.effects:
        if isinstance(effect, contract.SendClient) and type(effect.frame).__name__ == "Deliver":
            for each in effect.frame.matches:  # type: ignore[union-attr]
                yield effect.session, each.subscription, [datum.tick for datum in each.data]


@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "replaced"])
def test_a_session_with_many_subscriptions_ends_in_slices_and_completely(replaced: bool) -> None:
    rig = Rig(SLICED)
    rig.come(1, "c")
    for n in range(40):
        rig.say(1, Subscribe(n + 1, f"s{n}", f"k = {n}", "reliable"))
    rig.finish()
    edge = rig.broker.edge
    assert edge is not None
    assert len(edge.filters()) == 40
    if replaced:
        rig.come(2, "c")
    else:
        rig.handle(contract.ClientDisconnected(1))
    assert edge.filters()
    rig.handle(contract.ClientConnected(3))
    assert rig.finish() > 40
    assert not edge.filters()
    rig.say(3, Connect(PROTOCOL_VERSION, "c"))
    rig.say(3, Subscribe(1, "s1", "k = 1", "reliable"))
    rig.finish()
    assert len(rig.told(3, Subscribed)) == 1


def test_a_publisher_is_confirmed_before_the_events_of_another_are_delivered() -> None:
    rig = Rig(Options(step_work_max=20))
    for session in (1, 2):
        rig.come(session, f"c{session}")
    for n in range(30):
        rig.say(1, Subscribe(n + 1, f"s{n}", f"text LIKE '%{n}_z'", "reliable"))
    for _ in range(5):
        rig.finish()
        rig.now += 0.2
    bodies = [body("c1", n + 1, {"text": "!z" * 100}) for n in range(50)]
    rig.say(1, Publish(bodies))
    edge = rig.broker.edge
    assert edge is not None
    while rig.broker.is_working:
        rig.handle(contract.TimePassed())
    assert edge.has_backlog
    rig.say(2, Publish([body("c2", 1, {"n": 1})]))
    while not rig.told(2, Confirmed):
        rig.handle(contract.TimePassed())
    assert edge.has_backlog
    rig.finish()
    assert not edge.has_backlog


def body(publisher: str, sequence: int, attributes: dict[str, Value]) -> bytes:
    return encode_event(Event(attributes).stamped(EventId(publisher, 1, sequence), 1))


def test_replays_that_are_asked_for_at_once_are_answered_in_several_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(Options(), ALONE)
    rig.come(1, "p")
    text = "lorem ipsum " * 2_000
    for number in range(1, 101):
        event = Event({"text": text, "n": number}).stamped(EventId("p", 1, number), number)
        rig.say(1, Publish([encode_event(event)]))
    rig.finish()
    rig.come(2, "s")
    examined = 0

    def counted(*arguments: object) -> object:
        nonlocal examined
        examined += 1
        return decode_event(*arguments)  # type: ignore[arg-type]

    for number in range(1, 41):
        # The first event fills the window; of all others none is wanted.
        wanted = f"n = 1 OR text LIKE '%z{number}_%'"
        frame = Subscribe(number, f"s{number}", wanted, "reliable", "beginning", window=1)
        rig.say(2, frame)
    rig.finish()
    assert len(rig.told(2, Deliver)) == 40
    monkeypatch.setattr("anabranch.core.origin.replay.decode_event", counted)
    rig.say(2, Ack({"B1": {f"s{number}": 1 for number in range(1, 41)}}))
    most = examined
    while rig.broker.is_working or examined < 40 * 90:
        before = examined
        rig.now += 0.001
        rig.handle(contract.TimePassed())
        most = max(most, examined - before)
        assert rig.now < 10.0
    # One answer, or a bit of the next.
    assert 90 <= most <= 2 * 250


@pytest.mark.parametrize("bad", [None, 3_999])
def test_a_chunk_of_many_events_is_checked_in_slices_and_taken_whole(bad: int | None) -> None:
    drafts = [encode_draft(Event({"n": n})) for n in range(4_000)]
    if bad is not None:
        drafts[bad] = b"none"
    rig = Rig(SLICED)
    rig.come(1, "c")
    rig.finish()
    rig.effects.clear()
    rig.say(1, Stage(7, "t", 0, drafts, is_last=True))
    assert rig.broker.is_working
    assert not [e for e in rig.effects if isinstance(e, contract.Put)], (
        "taken before it was checked"
    )
    # What waits meanwhile finds the chunk taken, or refused.
    rig.say(1, Stage(8, "t", 1, [], is_last=True))
    assert rig.finish() > 4
    if bad is None:
        assert rig.told(1, Staged) == [Staged(7)]
        assert [e.request for e in rig.told(1, Refused) if isinstance(e, Refused)] == [8]
    else:
        refused = [e for e in rig.told(1, Refused) if isinstance(e, Refused)]
        assert [e.request for e in refused] == [7, 8]
        assert "event 3999" in refused[0].reason


def test_large_events_of_a_chunk_count_by_their_size() -> None:
    drafts = [encode_draft(Event({f"a{n}": n for n in range(200)})) for _ in range(100)]
    rig = Rig(SLICED)
    rig.come(1, "c")
    rig.finish()
    rig.say(1, Stage(7, "t", 0, drafts, is_last=True))
    assert rig.broker.is_working
    assert rig.finish() > 2
    assert rig.told(1, Staged) == [Staged(7)]


def many_parts(number: int) -> str:
    return " THEN ".join(f"p{n}:{{{boxes(20 + n)}}}" for n in range(number)) + " WITHIN 10 s"


@pytest.mark.parametrize("is_new", [True, False])
def test_a_pattern_is_read_once_however_it_begins(
    is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread has read it before; whoever reads it again does so in a step."""
    texts: list[str] = []
    read, parse = records._read, parse_expression

    def reads(pattern_id: str, text: str, limits: Limits) -> records.ParsedPattern:
        texts.append(text)
        return read(pattern_id, text, limits)

    rig = Rig(Options(), ALONE)
    rig.come(1, "c")
    rig.finish()
    monkeypatch.setattr(records, "_read", reads)
    # Another one each time: what somebody still has is not parsed again.
    made = many_parts(8 + is_new)
    long: list[str] = []

    def parses(text: str, limits: Limits) -> object:
        long.extend([text] if len(text) > 1_000 else [])
        return parse(text, limits)

    monkeypatch.setattr(filter_module, "parse_expression", parses)
    rig.say(1, Define(1, "p", made, is_new=is_new))
    while rig.now < 20.0 and not rig.told(1, Defined):
        rig.now += 0.1
        rig.finish()
    assert rig.told(1, Defined) == [Defined(1)], rig.told(1, Refused)
    assert texts == [made]
    # What its join point subscribes to, and that without its own notifications.
    assert len(long) == 2


def test_long_patterns_that_wait_for_other_brokers_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = many_parts(4)
    monkeypatch.setattr(definitions, "READ_AHEAD_CHARACTERS_MAX", 2 * len(made))
    rig = Rig(Options())
    rig.come(1, "c")
    rig.finish()
    for request in (1, 2, 3):
        rig.say(1, Define(request, f"p{request}", made))
        rig.finish()
    (refused,) = rig.told(1, Refused)
    assert isinstance(refused, Refused)
    assert (refused.request, refused.code) == (3, "busy")
    assert "try again later" in refused.reason


def test_what_a_subscription_costs_to_index_counts_as_work() -> None:
    """Join points that start subscribe one after the other in one stimulus."""
    rig = Rig(Options(), ALONE)
    rig.come(1, "c")
    rig.finish()
    assert rig.broker.edge is not None
    for number, is_much in ((500, True), (1, False)):
        frame = Subscribe(number, f"s{number}", boxes(number), "reliable")
        asks = list(rig.broker.edge.client_frame(rig.now, 1, frame))
        assert [each.work >= 500 for each in asks if isinstance(each, WorkDone)] == [True] * is_much
