"""A fetcher reads a stream at its origin, on a plain socket, whatever becomes of the connection."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest

import anabranch
from anabranch.client.errors import ClosedError, ConnectError
from anabranch.client.options import ClientOptions
from anabranch.client.stream_reader import Fetcher
from anabranch.model.client_frames import Described, Fetched, Refused
from anabranch.model.encoding import decode_event, rows_in
from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.wire.codec import encode_client
from anabranch.wire.framing import framed
from tests.pretender import REQUEST, pretender

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
    """Brokers a and b, with 100 events in each stream."""
    file = tmp_path_factory.mktemp("pair") / "pair.toml"
    file.write_text(PAIR)
    with anabranch.embedded(file) as running:
        for place in running.addresses:
            with anabranch.connect_blocking(place, name=f"feed-{place}") as client:
                client.publish_many({"n": n, "at": client.broker} for n in range(1, 101))
        yield running


def numbers(pieces: Iterator[Fetched] | Sequence[Fetched]) -> list[Value]:
    rows = chain.from_iterable(rows_in(each.data) for each in pieces)
    return [decode_event(body).attributes["n"] for _, _, body in rows]


def test_a_stream_is_found_through_any_broker(network: anabranch.Embedded) -> None:
    for place in network.addresses:
        with Fetcher(place) as near:
            streams = near.describe().origins
        assert len(streams) == 2
        for stream in streams:
            with Fetcher(place, stream=stream) as fetcher:
                described = fetcher.describe()
                assert described.broker == fetcher.stream == stream
                pieces = [*fetcher.fetch(described.oldest, described.head, bytes_max=900)]
                assert numbers(pieces) == [*range(1, 101)]
                assert len(pieces) > 5
                wanted = f"at = '{stream}' AND n > 90"
                assert numbers(fetcher.fetch(1, filter=wanted)) == [*range(91, 101)]


def test_a_stream_that_does_not_exist_is_an_error_that_names_those_that_do(
    network: anabranch.Embedded,
) -> None:
    with (
        Fetcher(*network.addresses, stream="nobody") as fetcher,
        pytest.raises(LocalError, match=r"no stream 'nobody' in network 'pair'; it has \w+, \w+"),
    ):
        fetcher.describe()


def test_two_fetches_may_be_under_way_and_one_may_be_given_up(network: anabranch.Embedded) -> None:
    with Fetcher(network.addresses[0]) as fetcher:
        one, other = fetcher.fetch(1, bytes_max=700), fetcher.fetch(1, bytes_max=900)
        given_up = fetcher.fetch(1, bytes_max=500)
        next(given_up)
        given_up.close()  # type: ignore[attr-defined]
        both: tuple[list[Fetched], list[Fetched]] = ([next(one)], [next(other)])
        fetcher.describe()
        for mine, yours in zip(one, other, strict=False):
            both[0].append(mine)
            both[1].append(yours)
        both[0].extend(one)
        both[1].extend(other)
        assert numbers(both[0])[:50] == numbers(both[1])[:50] == [*range(1, 51)]
        assert not fetcher._answers


def test_more_fetches_than_a_session_may_have_are_read_side_by_side(
    network: anabranch.Embedded,
) -> None:
    with Fetcher(network.addresses[0]) as fetcher:
        pieces = [fetcher.fetch(1, bytes_max=700) for _ in range(10)]
        rounds = [*zip(*pieces, strict=True)]
        assert len(rounds) > 5
        for each in zip(*rounds, strict=True):
            assert numbers(each) == [*range(1, 101)]


def test_arguments_that_make_no_sense_are_refused_at_once(network: anabranch.Embedded) -> None:
    with pytest.raises(LocalError, match="at least one broker"):
        Fetcher()
    with pytest.raises(LocalError, match="not on this machine"):
        Fetcher("broker.example:4100")
    with Fetcher(network.addresses[0]) as fetcher:
        with pytest.raises(LocalError, match="are not a range"):
            fetcher.fetch(0)
        with pytest.raises(LocalError, match="at position"):
            fetcher.fetch(1, filter="n >")
        with pytest.raises(LocalError, match="bytes_max is 0"):
            fetcher.fetch(1, bytes_max=0)


def test_of_two_fetchers_with_one_name_the_earlier_one_is_told(network: anabranch.Embedded) -> None:
    place = network.addresses[0]
    with Fetcher(place, name="twin") as one, Fetcher(place, name="twin") as other:
        one.describe()
        other.describe()
        with pytest.raises(ClosedError, match="another client called 'twin'"):
            one.describe()


def test_another_network_is_told_by_its_name(network: anabranch.Embedded) -> None:
    with (
        Fetcher(network.addresses[0], network="shop", patience_s=0.0) as fetcher,
        pytest.raises(ConnectError, match="network 'shop' does not match 'pair'"),
    ):
        fetcher.describe()


def test_a_broker_that_is_not_there_is_an_error_that_names_its_address() -> None:
    with socket.socket() as plug:
        plug.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{plug.getsockname()[1]}"
        with (
            Fetcher(place, patience_s=0.1, options=BRISK) as fetcher,
            pytest.raises(ConnectError, match=f"{place}: connection refused"),
        ):
            fetcher.describe()


# -- brokers that behave badly


_PLACE = int.from_bytes(REQUEST)
GOOD = framed(encode_client(Described(_PLACE, "n", "a", 1, 9, 0, 0, {"a": ""})))
WRONG = framed(encode_client(Fetched(_PLACE, 1, 1, 0, b"")))
REFUSED = framed(encode_client(Refused(_PLACE, "not today")))


def test_bad_answers_and_broken_connections_are_asked_about_again() -> None:
    bad = [b"", b"\0\0\0\0", GOOD[:-3], framed(b"\xc1"), WRONG, framed(b"x" * 9)]
    with pretender(*bad, GOOD) as place, Fetcher(place, options=BRISK) as fetcher:
        assert fetcher.describe().head == 9


def test_bad_answers_are_an_error_when_patience_is_over() -> None:
    with (
        pretender(WRONG) as place,
        Fetcher(place, patience_s=0.0, options=BRISK) as fetcher,
        pytest.raises(ConnectError, match="was not readable for 0 s: a fetch from tick 1"),
    ):
        fetcher.describe()


def test_a_refusal_is_final() -> None:
    with (
        pretender(REFUSED) as place,
        Fetcher(place, options=BRISK) as fetcher,
        pytest.raises(anabranch.FetchRefusedError, match="not today"),
    ):
        fetcher.describe()


def test_an_origin_whose_address_nobody_knows_is_told() -> None:
    known = framed(encode_client(Described(_PLACE, "n", "a", 1, 9, 0, 0, {"a": "", "b": ""})))
    with (
        pretender(known) as place,
        Fetcher(place, stream="b", patience_s=0.0, options=BRISK) as fetcher,
        pytest.raises(ConnectError, match="this is broker 'a'"),
    ):
        fetcher.describe()


class _InterruptError(Exception):
    """Whatever a signal, a timer or a framework throws into a call."""


def test_a_call_that_is_interrupted_leaves_no_half_of_an_answer_behind() -> None:
    said_after: list[bytes] = []

    def interrupt(plug: socket.socket) -> None:
        if not said_after:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            said = b""
            with suppress(ConnectionError):
                said = plug.recv(1)
            said_after.append(said)

    def throw(*_: object) -> None:
        raise _InterruptError

    before = signal.signal(signal.SIGUSR1, throw)
    try:
        with (
            pretender(GOOD[:-3], GOOD, afterwards=interrupt) as place,
            Fetcher(place, options=BRISK) as fetcher,
        ):
            with pytest.raises(_InterruptError):
                fetcher.describe()
            assert fetcher.describe().head == 9
            assert said_after == [b""]
    finally:
        signal.signal(signal.SIGUSR1, before)


_FORKING = """
import os
import anabranch

fetcher = anabranch.Fetcher("127.0.0.1:1")
child = os.fork()
if child == 0:
    try:
        fetcher.describe()
    except anabranch.AnabranchError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_fetcher_is_for_the_process_that_made_it() -> None:
    source = Path(anabranch.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", _FORKING],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(source)},
    )
    assert done.stdout == "this fetcher belongs to another process; create one in each process\n"
