"""Cursors: logs keep what a query has not read, and no more."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

import anabranch
from anabranch.spark import cursor as cursors
from anabranch.spark.cursor import Cursor, owner_of
from anabranch.spark.options import OptionError, Options, read_options
from anabranch.spark.survey import Survey
from tests.spark_parts import PAIR, network_of

#: Two brokers that forget what nobody needs any more.
FORGETFUL = PAIR.replace("keep_s = 86_400.0", "keep_s = 0.0\ndone_every_s = 0.05")
BOUND_S = 180.0


class Held:
    """A network, a publisher at its first broker, and what its log has."""

    def __init__(self, network: anabranch.Embedded) -> None:
        self.network = network
        self._client = anabranch.connect_blocking(network.addresses[0], name="feed")
        self._fetcher = anabranch.Fetcher(network.addresses[0])

    def publish(self, count: int) -> None:
        self._client.publish_many({"n": n} for n in range(count))

    @property
    def oldest(self) -> int:
        return self._fetcher.describe().oldest

    @property
    def end(self) -> int:
        return self._fetcher.describe().head + 1

    def options(self, **given: str) -> Options:
        brokers = ",".join(self.network.addresses)
        return read_options({"brokers": brokers, "durableSubscription": "etl", **given})

    def close(self) -> None:
        self._client.close()
        self._fetcher.close()


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = monotonic() + BOUND_S
    while not is_so():
        assert monotonic() < deadline, f"not within {BOUND_S:.0f} s: {what}"
        sleep(0.02)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    monkeypatch.setattr(cursors, "MOVE_EVERY_S", 0.0)
    with network_of(tmp_path, FORGETFUL) as network:
        held = Held(network)
        yield held
        held.close()


def test_a_log_keeps_what_a_cursor_holds_and_forgets_the_rest(held: Held) -> None:
    held.publish(100)
    until(lambda: held.oldest == held.end, "what nobody needs is forgotten")
    with Survey(held.options()) as survey:
        cursor = Cursor(held.options())
        seen = survey.look()
        assert cursor.standing(seen) is None
        begin = held.end
        cursor.begin({stream: extent.end for stream, extent in seen.extents.items()}, survey)
        held.publish(500)
        # Somebody else's subscription is done with all of it; then only the cursor holds it.
        moved = {"a": begin + 200, "b": seen.extents["b"].end}
        cursor.move(moved, survey)
        until(lambda: held.oldest == begin + 200, "what is dealt with is forgotten")
        assert held.end == begin + 500
        # Another process finds it where it stands, and goes on.
        successor = Cursor(held.options())
        assert successor.standing(survey.look()) == moved
        successor.begin(moved, survey)
        successor.move({**moved, "a": begin + 300}, survey)
        until(lambda: held.oldest == begin + 300, "the successor moves it on")
        with pytest.raises(OptionError, match=r"durableSubscription.*does another query use 'etl'"):
            cursor.move({**moved, "a": begin + 400}, survey)


def test_streams_that_are_not_read_are_not_held(held: Held) -> None:
    options = held.options(streams="b")
    with Survey(options) as survey:
        cursor = Cursor(options)
        cursor.begin({"b": survey.look().extents["b"].end}, survey)
        held.publish(100)
        cursor.move({"b": survey.look().extents["b"].end}, survey)
        until(lambda: held.oldest >= 100, "the stream that is not read is forgotten")


def test_a_cursor_moves_now_and_then_and_at_the_end(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "MOVE_EVERY_S", 3_600.0)
    with Survey(held.options()) as survey:
        cursor = Cursor(held.options())
        first = {stream: extent.end for stream, extent in survey.look().extents.items()}
        cursor.begin(first, survey)
        held.publish(50)
        end = {**first, "a": held.end}
        cursor.move(end, survey)
        assert Cursor(held.options()).standing(survey.look()) == first
        cursor.settle(survey)
        assert Cursor(held.options()).standing(survey.look()) == end


def test_a_query_that_begins_before_its_cursor_is_warned(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    with Survey(held.options()) as survey:
        held.publish(10)
        first = {stream: extent.end for stream, extent in survey.look().extents.items()}
        Cursor(held.options()).begin(first, survey)
        with caplog.at_level(logging.WARNING):
            Cursor(held.options()).begin({**first, "a": 1}, survey)
    assert f"holds stream 'a' from tick {first['a']}, but the query starts at tick 1" in caplog.text


def test_a_cursor_is_ended_like_any_durable_subscription(held: Held) -> None:
    with Survey(held.options()) as survey:
        Cursor(held.options()).begin({}, survey)
        with held.network.connect_blocking(name=owner_of("etl")) as client:
            client.subscribe("FALSE", durable="etl", must_exist=True).unsubscribe()
        assert Cursor(held.options()).standing(survey.look()) is None


def test_a_name_that_is_too_long_is_an_error_that_names_the_option() -> None:
    options = read_options({"brokers": "127.0.0.1:1", "durableSubscription": "x" * 250})
    with pytest.raises(OptionError, match="option 'durableSubscription'"):
        Cursor(options)
