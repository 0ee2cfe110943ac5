"""Lines of the log: what is in them, and how many strangers can cause."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from anabranch.node.node_log import LOGGER, JsonLines, NodeLog, TextLines, Throttle


@pytest.fixture
def written() -> io.StringIO:
    return io.StringIO()


def lines_of(written: io.StringIO, how: logging.Formatter) -> NodeLog:
    writer = logging.StreamHandler(written)
    writer.setFormatter(how)
    LOGGER.handlers[:] = [writer]
    LOGGER.setLevel(logging.INFO)
    return NodeLog("a")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    handlers, level = LOGGER.handlers[:], LOGGER.level
    yield
    LOGGER.handlers[:] = handlers
    LOGGER.setLevel(level)


def test_a_text_line_has_level_broker_and_text(written: io.StringIO) -> None:
    lines_of(written, TextLines()).warning("no link to %s", "b")
    assert written.getvalue().endswith(" warning a: no link to b\n")


def test_a_json_line_is_one_document(written: io.StringIO) -> None:
    log = lines_of(written, JsonLines())
    try:
        raise ValueError("planted\nin two lines")
    except ValueError:
        log.exception("what\nhappened")
    (line,) = written.getvalue().splitlines()
    told = json.loads(line)
    assert (told["level"], told["broker"], told["text"]) == ("error", "a", "what\nhappened")
    assert "planted" in told["exception"]


def test_more_lines_than_allowed_are_counted_instead(written: io.StringIO) -> None:
    throttle = Throttle(lines_of(written, TextLines()), per_s=2)
    for number in range(50):
        throttle.info(f"line {number}")
    assert len(written.getvalue().splitlines()) == 2
    throttle._second_at -= 1.0
    throttle.info("later")
    assert "later (suppressed 48 similar lines)" in written.getvalue()
