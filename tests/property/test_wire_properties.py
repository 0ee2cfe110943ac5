"""Random frames survive the wire; random bytes are frames or raise the remote error."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.model.errors import RemoteError
from anabranch.model.limits import Limits
from anabranch.wire.codec import decode_client, decode_link, encode_client, encode_link
from anabranch.wire.framing import FrameReader, framed
from tests.frame_parts import CARRIED_TYPES, CLIENT_TYPES, LINK_TYPES, TEXTS, Codec, any_of

LINKS: Codec = encode_link, decode_link
CLIENTS: Codec = encode_client, decode_client
LINK_FRAMES = st.one_of(*map(any_of, LINK_TYPES))
CLIENT_FRAMES = st.one_of(*map(any_of, CLIENT_TYPES))
#: There are many types, and each gets its own examples.
FEWER = settings(max_examples=1 + settings().max_examples // 4)
#: Anything MessagePack can say.
ITEMS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(TEXTS, max_size=10)
    | st.binary(max_size=10)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=4)),
    lambda items: (
        st.lists(items, max_size=6) | st.dictionaries(st.text(TEXTS, max_size=5), items, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("kind", [*LINK_TYPES, *CARRIED_TYPES], ids=lambda kind: kind.__name__)
@FEWER
@given(data=st.data())
def test_a_random_link_frame_comes_back_as_it_was(
    kind: type[msgspec.Struct], data: st.DataObject
) -> None:
    part = data.draw(any_of(kind))
    if kind in CARRIED_TYPES:
        carry = next(one for one in LINK_TYPES if one.__name__ == "Carry")
        part = carry("a", "b", 1, part)
    comes_back(LINKS, part)


@pytest.mark.parametrize("kind", CLIENT_TYPES, ids=lambda kind: kind.__name__)
@FEWER
@given(data=st.data())
def test_a_random_client_frame_comes_back_as_it_was(
    kind: type[msgspec.Struct], data: st.DataObject
) -> None:
    comes_back(CLIENTS, data.draw(any_of(kind)))


def comes_back(family: Codec, frame: msgspec.Struct) -> None:
    encode, decode = family
    again = decode(encode(frame))
    assert type(again) is type(frame)
    assert again == frame


@given(st.binary(max_size=60))
def test_random_bytes_decode_or_raise_the_remote_error(data: bytes) -> None:
    for family in (LINKS, CLIENTS):
        decodes_or_is_refused(family, data)


@given(ITEMS | st.tuples(st.integers(0, 20), *[ITEMS] * 4))
def test_random_items_decode_or_raise_the_remote_error(item: object) -> None:
    for family in (LINKS, CLIENTS):
        decodes_or_is_refused(family, msgspec.msgpack.encode(item))


@given(LINK_FRAMES | CLIENT_FRAMES, st.data())
def test_a_frame_with_random_damage_decodes_or_raises_the_remote_error(
    frame: msgspec.Struct, data: st.DataObject
) -> None:
    good = msgspec.msgpack.encode(frame)
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, len(good)))
    bad = good[:start] + data.draw(st.binary(max_size=8)) + good[end:]
    for family in (LINKS, CLIENTS):
        decodes_or_is_refused(family, bad)


def decodes_or_is_refused(family: Codec, data: bytes) -> None:
    encode, decode = family
    try:
        frame = decode(data)
    except RemoteError:
        return
    assert decode(encode(frame)) == frame


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=8), st.data())
def test_chunks_do_not_change_what_a_reader_finds(frames: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(map(framed, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    reader = FrameReader()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        found += reader.feed(sent[start:end])
    assert found == frames


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_random_chunks_give_frames_or_the_remote_error(chunks: list[bytes]) -> None:
    reader = FrameReader(Limits(frame_bytes_max=30))
    try:
        for chunk in chunks:
            assert all(0 < len(frame) <= 30 for frame in reader.feed(chunk))
    except RemoteError:
        with pytest.raises(RemoteError):
            reader.feed(b"")
