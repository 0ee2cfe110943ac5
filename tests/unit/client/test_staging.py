"""A stager brings drafts to one origin and commits them, on a plain socket, over reconnects."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import pytest

import anabranch
from anabranch.client.errors import (
    BatchRefusedError,
    BatchUnknownError,
    ClosedError,
    ConnectError,
)
from anabranch.client.options import ClientOptions
from anabranch.client.staging import Stager
from anabranch.model.client_frames import (
    BUSY,
    OTHER_BATCH,
    UNKNOWN_TOKEN,
    AnyClientFrame,
    Commit,
    Committed,
    Refused,
    Stage,
    Staged,
)
from anabranch.model.encoding import decode_event, encode_draft, rows_in
from anabranch.model.errors import LocalError
from anabranch.model.event import Event, Value
from anabranch.wire.codec import decode_client, encode_client
from anabranch.wire.framing import FrameReader, framed
from anabranch.wire.greeting import Greeting, encode_greeting

BRISK = ClientOptions(pause_last_s=0.01, dial_within_s=10.0)
PAIR = """
[network]
name = "pair"
[tree]
a = ["b"]
[options]
keep_s = 1_000.0
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[anabranch.Embedded]:
    file = tmp_path_factory.mktemp("pair") / "pair.toml"
    file.write_text(PAIR)
    with anabranch.embedded(file) as running:
        yield running


def drafts(*numbers: int) -> list[bytes]:
    return [encode_draft(Event({"n": number}), 1) for number in numbers]


def written(place: str, stream: str, sink: str) -> list[Value]:
    with anabranch.Fetcher(place, stream=stream) as fetcher:
        rows = chain.from_iterable(rows_in(each.data) for each in fetcher.fetch(1))
        events = [decode_event(body) for _, _, body in rows]
    return [each["n"] for each in events if each.id and each.id.publisher == f"sink/{sink}"]


def test_chunks_become_a_batch_in_the_order_of_tokens(network: anabranch.Embedded) -> None:
    with Stager(network.addresses[0]) as stager:
        assert stager.stage("one", (drafts(n, n + 1) for n in range(0, 100, 2))) == 100
        assert stager.stage("nothing", []) == 0
        assert stager.stage("two", [drafts(100, 101)]) == 2
        batch = stager.commit(sink="order", query="q", batch=7, tokens=["two", "nothing", "one"])
        assert not batch.was_known
        assert stager.commit(sink="order", query="q", batch=7, tokens=["gone"]).was_known
        there = written(network.addresses[0], stager.stream, "order")
    assert there == [100, 101, *range(100)]


def test_the_origin_is_found_through_any_broker(network: anabranch.Embedded) -> None:
    for place in network.addresses:
        for stream in "a", "b":
            sink = f"from {place} to {stream}"
            with Stager(place, stream=stream) as stager:
                stager.stage(sink, [drafts(1, 2)])
                assert stager.commit(sink=sink, query="", batch=0, tokens=[sink]).stream == stream
            assert written(place, stream, sink) == [1, 2]


def test_without_a_name_the_broker_at_the_first_address_is_the_origin(
    network: anabranch.Embedded,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        silent = f"127.0.0.1:{nobody.getsockname()[1]}"
        nobody.close()
        with (
            Stager(silent, *network.addresses, patience_s=0.2, options=BRISK) as stager,
            pytest.raises(ConnectError, match=f"no broker for staging 't' within 0.2 s: {silent}"),
        ):
            stager.stage("t", [drafts(1)])


def test_a_stream_that_does_not_exist_is_an_error_at_once(network: anabranch.Embedded) -> None:
    with (
        Stager(*network.addresses, stream="nobody") as stager,
        pytest.raises(LocalError, match="no stream 'nobody' in network 'pair'; it has a, b"),
    ):
        stager.stage("t", [drafts(1)])


def test_arguments_that_make_no_sense_are_refused_at_once() -> None:
    with pytest.raises(LocalError, match="at least one broker"):
        Stager()
    with pytest.raises(LocalError, match="not on this machine"):
        Stager("broker.example:4100")


def test_what_is_discarded_cannot_be_committed(network: anabranch.Embedded) -> None:
    with Stager(network.addresses[0]) as stager:
        stager.stage("unwanted", [drafts(1)])
        stager.discard(["unwanted"])
        with pytest.raises(
            BatchRefusedError, match="batch 0 of 'none' was refused: 'unwanted' is not"
        ):
            stager.commit(sink="none", query="", batch=0, tokens=["unwanted"])
        stager.stage("wanted", [drafts(2)])
        stager.commit(sink="none", query="", batch=0, tokens=["wanted"])
    assert written(network.addresses[0], stager.stream, "none") == [2]


def test_of_two_with_one_name_the_earlier_one_is_told(network: anabranch.Embedded) -> None:
    place = network.addresses[0]
    with Stager(place, name="same") as one, Stager(place, name="same") as other:
        one.stage("s1", [drafts(1)])
        other.stage("s2", [drafts(1)])
        with pytest.raises(ClosedError, match="another client called 'same'"):
            one.stage("s3", [drafts(1)])


# -- a broker that answers as the test wants -------------------------------------------------------

Answering = Callable[[AnyClientFrame], "list[AnyClientFrame] | None"]


@contextmanager
def broker(answer: Answering) -> Iterator[str]:
    """Answers chunks and commits; hangs up where the answer is None."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                plug, _ = listening.accept()
            except OSError:
                return
            with plug:
                converse(plug, answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(120)


def converse(plug: socket.socket, answer: Answering) -> None:
    reader = FrameReader()
    is_greeted = False
    while data := plug.recv(1 << 20):
        for body in reader.feed(data):
            if not is_greeted:
                is_greeted = True
                greeting = Greeting(kind="client", network="n", name="b", frame_bytes_max=1 << 24)
                plug.sendall(framed(encode_greeting(greeting)))
                continue
            said = answer(decode_client(body))
            if said is None:
                return
            for frame in said:
                plug.sendall(framed(encode_client(frame)))


def test_what_was_not_answered_is_sent_again_after_a_lost_connection() -> None:
    seen: list[tuple[int, int]] = []

    def answer(frame: AnyClientFrame) -> list[AnyClientFrame] | None:
        if not isinstance(frame, Stage):
            return []
        seen.append((frame.index, len(frame.bodies)))
        # The third frame of the first connection gets no answer.
        return None if len(seen) == 3 else [Staged(frame.request)]

    with broker(answer) as place, Stager(place, options=BRISK) as stager:
        assert stager.stage("t", [drafts(n) for n in range(5)]) == 5
    assert seen[:3] == [(0, 1), (1, 1), (2, 1)]
    assert {index for index, _ in seen[3:]} >= {2, 3, 4}


def test_what_is_refused_for_now_is_sent_again_until_patience_ends() -> None:
    refusals = 3

    def answer(frame: AnyClientFrame) -> list[AnyClientFrame] | None:
        nonlocal refusals
        if not isinstance(frame, Stage):
            return []
        refusals -= 1
        if refusals >= 0:
            return [Refused(frame.request, "the disk has no room", BUSY)]
        return [Staged(frame.request)]

    with broker(answer) as place:
        with Stager(place, options=BRISK) as stager:
            assert stager.stage("t", [drafts(1)]) == 1
        assert refusals == -1
        refusals = 1_000
        with (
            Stager(place, options=BRISK, patience_s=0.1) as stager,
            pytest.raises(
                BatchUnknownError,
                match=r"by 'b' in time: the disk has no room; its outcome is unknown",
            ),
        ):
            stager.stage("t", [drafts(1)])


def test_a_commit_waits_for_the_batch_that_is_under_way() -> None:
    asked = 0

    def answer(frame: AnyClientFrame) -> list[AnyClientFrame] | None:
        nonlocal asked
        if not isinstance(frame, Commit):
            return []
        asked += 1
        if asked < 3:
            return [Refused(frame.request, "batch 1 is under way", OTHER_BATCH)]
        return [Committed(frame.request, frame.sink, frame.batch, 5, 6, was_known=False)]

    with broker(answer) as place, Stager(place, options=BRISK) as stager:
        batch = stager.commit(sink="s", query="q", batch=2, tokens=["t"])
    assert (asked, batch.first, batch.last, batch.stream) == (3, 5, 6, "b")


def test_a_final_refusal_is_an_error_with_its_code_and_later_calls_work() -> None:
    def answer(frame: AnyClientFrame) -> list[AnyClientFrame] | None:
        if isinstance(frame, Commit):
            return [Refused(frame.request, "'t' is not staged here", UNKNOWN_TOKEN)]
        return [Staged(frame.request)] if isinstance(frame, Stage) else []

    with broker(answer) as place, Stager(place, options=BRISK) as stager:
        with pytest.raises(BatchRefusedError, match="batch 2 of 's' was refused") as caught:
            stager.commit(sink="s", query="q", batch=2, tokens=["t"])
        assert caught.value.code == UNKNOWN_TOKEN
        assert stager.stage("u", [drafts(1), drafts(2)]) == 2
