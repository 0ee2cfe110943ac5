"""Large frames in parts: all of them, in order."""

from anabranch.model.client_frames import Ack, Publish
from anabranch.node.frame_queue import BYTES_MAX, EVENTS_MAX, TICKS_MAX, parts_of


def test_small_frames_and_single_events_stay_as_they_are() -> None:
    assert parts_of(Publish([b"x"] * EVENTS_MAX)) == []
    assert parts_of(Publish([b"x" * (2 * BYTES_MAX)])) == []
    assert parts_of(Ack({"a": {"s": 1}})) == []


def test_events_are_split_by_number_and_by_size_and_keep_their_order() -> None:
    bodies = [b"%d" % n for n in range(3 * EVENTS_MAX + 1)]
    parts = parts_of(Publish(bodies))
    assert [len(part.bodies) for part in parts if isinstance(part, Publish)] == [
        *[EVENTS_MAX] * 3,
        1,
    ]
    assert [b for part in parts if isinstance(part, Publish) for b in part.bodies] == bodies
    large = [bytes([n]) * (BYTES_MAX // 2) for n in range(5)]
    sizes = [len(part.bodies) for part in parts_of(Publish(large)) if isinstance(part, Publish)]
    assert sizes == [2, 2, 1]


def test_acknowledgements_are_split_and_none_is_lost() -> None:
    ticks = {f"s{n}": n for n in range(TICKS_MAX + 5)}
    parts = parts_of(Ack({"a": ticks, "b": {"s1": 7}}))
    assert not any(map(parts_of, parts)), "a part that is split again would be split for ever"
    found: dict[str, dict[str, int]] = {}
    for part in parts:
        assert isinstance(part, Ack)
        for stream, some in part.ticks.items():
            found.setdefault(stream, {}).update(some)
    assert found == {"a": ticks, "b": {"s1": 7}}
    assert len(parts) == 2


def test_acknowledgements_of_many_streams_are_split_and_share_their_parts() -> None:
    ticks = {f"o{n}": {"s1": n} if n % 2 else {} for n in range(TICKS_MAX + 1)}
    parts = [part for part in parts_of(Ack(ticks)) if isinstance(part, Ack)]
    assert {stream: some for part in parts for stream, some in part.ticks.items()} == ticks
    assert len(parts) == 2
    assert not any(map(parts_of, parts)), "a part that is split again would be split for ever"
