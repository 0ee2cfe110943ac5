"""What is read ahead is found, bounded, and the same as what is read when it is wanted."""

import pytest

from anabranch.model import read_ahead
from anabranch.model.errors import FilterError
from anabranch.model.filter import Filter
from anabranch.model.read_ahead import ReadAhead, Reading, forget_all, keep_together


@pytest.fixture(autouse=True)
def _nothing_is_known() -> None:
    forget_all()


def reading(text: str, kind: str = "test") -> Reading[str, str]:
    store: ReadAhead[str, str] = ReadAhead(kind)
    return Reading(store, text, text, lambda: (text.upper(), len(text)))


def kept(text: str, kind: str = "test") -> Reading[str, str]:
    made = reading(text, kind)
    made.read()
    made.keep()
    return made


def test_what_was_read_is_found_once_it_is_kept_by_its_kind() -> None:
    one = reading("one")
    one.read()
    before = one.is_made
    one.keep()
    assert (before, one.is_made) == (False, True)
    store: ReadAhead[str, str] = ReadAhead("test")
    assert store.find("one") == "ONE"
    assert ReadAhead[str, str]("other").find("one") is None


def test_the_newest_of_all_kinds_stay_and_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "READ_AHEAD_BYTES_MAX", 9)
    held = [kept("aaa"), kept("bbb", "other"), kept("ccc"), kept("ddd")]
    assert [each.is_made for each in held] == [False, True, True, True]
    # Whoever holds one makes it the newest again.
    held[1].keep()
    large = kept("x" * 7)
    assert [each.is_made for each in (*held, large)] == [False] * 4 + [True]
    larger = kept("y" * 20)
    assert not large.is_made
    assert larger.is_made


def test_what_is_kept_for_one_frame_stays_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "READ_AHEAD_BYTES_MAX", 6)
    before, frame = kept("aaa"), [reading("bbb"), reading("ccc", "other"), reading("ddd")]
    for each in frame:
        each.read()
    keep_together(frame)
    assert [each.is_made for each in (before, *frame)] == [False, True, True, True]
    kept("eee")
    assert [each.is_made for each in frame] == [False, False, True]


def test_to_keep_the_same_again_counts_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "READ_AHEAD_BYTES_MAX", 6)
    for _ in range(5):
        both = [kept("aaa"), kept("bbb")]
    assert all(each.is_made for each in both)


def test_a_filter_that_was_read_ahead_is_parsed_to_the_same() -> None:
    text = "price   >   10 AND size<3"
    made = Filter.reading(text)
    assert made is not None
    made.read()
    made.keep()
    assert Filter.parse(text) is Filter.parse(text)
    assert str(Filter.parse(text)) == "price > 10 AND size < 3"


def test_a_text_that_is_no_filter_raises_the_same_error_each_time() -> None:
    made = Filter.reading("price >   ")
    assert made is not None
    with pytest.raises(FilterError) as read:
        Filter.parse("price >   ")
    made.read()
    made.keep()
    for _ in range(2):
        with pytest.raises(FilterError) as found:
            Filter.parse("price >   ")
        assert str(found.value) == str(read.value)


def test_a_remembered_filter_is_read_ahead_only_to_compile_it() -> None:
    text = "price > 11"
    known = Filter.parse(text)
    known.remember(text)
    assert Filter.reading(text) is None
    made = Filter.reading(text, compiled=True)
    assert made is not None
    made.read()
    assert known.is_compiled
    assert Filter.reading(text, compiled=True) is None
