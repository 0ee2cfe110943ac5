"""Which deliveries share a frame: those of one session and one stream in one step."""

from anabranch.core.options import Options
from anabranch.model.client_frames import Deliver, Matches, Withheld
from anabranch.model.frame_parts import Hole
from anabranch.wire.codec import encode_client
from tests.edge_parts import Rig, datum


def test_each_subscription_gets_what_it_wants_in_one_frame_per_step() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "low", "price < 5")
    rig.subscribe(session, "high", "price > 3")
    rig.arrive(datum(1, 1), datum(2, 4), datum(3, 9))
    (frame,) = rig.taken(session, Deliver)
    matches = {each.subscription: each for each in frame.matches}
    assert [each.tick for each in matches["low"].data] == [1, 2]
    assert [each.tick for each in matches["high"].data] == [2, 3]


def test_each_session_and_each_stream_has_frames_of_its_own() -> None:
    rig = Rig()
    sessions = [rig.connect(client) for client in ("one", "other")]
    for session in sessions:
        rig.subscribe(session, "s")
    rig.arrive(1)
    rig.arrive(1, stream="c")
    for session in sessions:
        assert rig.taken(session, Deliver) == [
            Deliver("b", [Matches("s", 1, [datum(1)])]),
            Deliver("c", [Matches("s", 1, [datum(1)])]),
        ]


def test_what_many_subscriptions_get_is_split_before_it_becomes_too_large() -> None:
    rig = Rig(options=Options(replay_bytes_max=10_000))
    session = rig.connect()
    names = [f"s{number}" for number in range(50)]
    for name in names:
        rig.subscribe(session, name)
    rig.arrive(1)
    frames = rig.taken(session, Deliver)
    assert all(len(encode_client(frame)) < 10_000 for frame in frames)
    assert 1 < len(frames) < 10
    assert [each.subscription for frame in frames for each in frame.matches] == names


def test_nothing_said_to_a_session_overtakes_what_it_gets() -> None:
    rig = Rig()
    session = rig.connect()
    for name in ("one", "other"):
        rig.subscribe(session, name)
    rig.arrive(1, 3, holes=[Hole(2, 2, "transient")])
    said = [frame for frame in rig.frames[session] if isinstance(frame, Deliver | Withheld)]
    assert [type(frame).__name__ for frame in said] == [
        "Deliver",
        "Withheld",
        "Withheld",
        "Deliver",
    ]
