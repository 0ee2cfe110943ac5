"""The frames that hostile parties draw: all there are, as the types have them, and most of them
near to what makes sense.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.model import client_frames as c
from anabranch.model.event import DEFAULT_CONTROL
from anabranch.wire.codec import decode_client, decode_link, encode_client, encode_link
from tests.frame_parts import CARRIED_TYPES, CLIENT_TYPES, LINK_TYPES
from tests.fuzz.core_world import VOCABULARY
from tests.fuzz.hostile_frames import (
    FROM_CLIENTS,
    LARGE,
    Carried,
    client_frames,
    frames,
    link_frames,
)
from tests.fuzz.known_open import KNOWN_OPEN
from tests.fuzz.symbols import Body, Heard, Memory, resolved, twisted

SMALL = settings(max_examples=4, suppress_health_check=list(HealthCheck))
KINDS = [*CLIENT_TYPES, *LINK_TYPES, *(Carried(each) for each in CARRIED_TYPES)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: getattr(each, "__name__", str(each)))
@SMALL
@given(data=st.data())
def test_every_frame_is_drawn_and_decodes_to_itself(
    kind: type[msgspec.Struct] | Carried, data: st.DataObject
) -> None:
    drawn: Any = data.draw(frames(kind, VOCABULARY))
    if isinstance(kind, Carried):
        assert isinstance(drawn.content, kind.content)
    else:
        assert isinstance(drawn, kind)
    encode: Any = encode_client if kind in CLIENT_TYPES else encode_link
    decode: Any = decode_client if kind in CLIENT_TYPES else decode_link
    memory = Memory()
    for _ in range(2):
        # The second time there is something to recall.
        said = resolved(drawn, memory)
        assert same(decode(encode(said)), said)
        memory.hears(said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "kinds"),
    [(client_frames(VOCABULARY), FROM_CLIENTS), (link_frames(VOCABULARY), LINK_TYPES)],
    ids=["clients", "links"],
)
def test_what_is_drawn_is_of_every_type_before_long(
    strategy: st.SearchStrategy[msgspec.Struct], kinds: tuple[type, ...]
) -> None:
    seen: set[type] = set()

    @settings(max_examples=800, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def draw(frame: msgspec.Struct) -> None:
        seen.add(type(frame))

    draw()
    assert seen >= set(kinds)


def same(one: msgspec.Struct, other: msgspec.Struct) -> bool:
    """Equal as bytes: NaN is."""
    return msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other)


def test_symbols_stand_for_what_was_told_last() -> None:
    memory = Memory()
    memory.hears(c.StartsAt("s1", "a", 7))
    memory.hears(c.StartsAt("s1", "a", 9))
    fetch = c.Fetch(1, Heard("tick", 1, 1), Heard("tick", 0, -1), "", 1)  # type: ignore[arg-type]
    assert resolved(fetch, memory) == c.Fetch(1, 8, 8, "", 1)


def test_symbols_of_what_nobody_told_stay_within_the_bounds_of_their_types() -> None:
    ack = c.Ack({"a": {"s1": Heard("tick", 0, -5)}})  # type: ignore[dict-item]
    assert resolved(ack, Memory()) == c.Ack({"a": {"s1": 0}})


def test_bodies_count_up_by_publisher_and_incarnation() -> None:
    memory = Memory()
    body = Body("p", 1, 0, (("a", 1),), DEFAULT_CONTROL)
    first, second = memory.encoded(body), memory.encoded(body)
    assert first != second
    assert memory.sequences == {("p", 1): 2}


def test_what_is_left_out_is_said_why() -> None:
    assert all(len(reason.split()) > 5 for reason in KNOWN_OPEN)


def test_a_frame_is_twisted_in_one_place() -> None:
    told = c.Deliver("a", [c.Matches("s1", 7, []), c.Matches("s2", 9, [])])
    assert twisted(told, [0], 1, "b") == msgspec.structs.replace(told, stream="b")
    further = c.Deliver("a", [c.Matches("s1", 7, []), c.Matches("s2", 10, [])])
    assert twisted(told, [1, 1, 1], 1, "b") == further
    assert twisted(told, [1, 1], 1, "b") == c.Deliver("a", told.matches[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("seed", range(6))
def test_large_frames_are_large_and_can_be_sent(kind: str, seed: int) -> None:
    data = encode_client(LARGE[kind](1.0, seed))
    assert len(data) > 5_000
    assert type(decode_client(data)).__name__ == kind
