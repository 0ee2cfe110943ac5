"""Options: which combinations are refused, and what the errors say."""

import msgspec
import pytest

from anabranch.core.options import COPIES_MAX, Options
from anabranch.model.errors import LocalError


def test_a_stream_has_one_copy_by_default() -> None:
    assert (Options().copies, Options().confirm, Options().keepers) == (1, 1, ())


@pytest.mark.parametrize("copies", range(1, COPIES_MAX + 1))
def test_any_number_of_the_copies_may_confirm(copies: int) -> None:
    for confirm in range(1, copies + 1):
        assert Options(copies=copies, confirm=confirm).confirm == confirm


@pytest.mark.parametrize("copies", [-1, 0, COPIES_MAX + 1])
def test_the_number_of_copies_is_limited(copies: int) -> None:
    with pytest.raises(LocalError, match=f"copies is {copies}; give 1 to {COPIES_MAX}"):
        Options(copies=copies)


@pytest.mark.parametrize("confirm", [-1, 0, 3])
def test_only_copies_confirm(confirm: int) -> None:
    with pytest.raises(LocalError, match=f"confirm is {confirm}, but copies is 2; give confirm 1"):
        Options(copies=2, confirm=confirm)


def test_keepers_and_the_origin_are_as_many_as_the_copies() -> None:
    assert Options(copies=3, keepers=("b", "c")).keepers == ("b", "c")
    with pytest.raises(LocalError, match="keepers has 1 names, but copies is 3; name 2 keepers"):
        Options(copies=3, keepers=("b",))
    with pytest.raises(LocalError, match="keepers names a broker twice: b, b"):
        Options(copies=3, keepers=("b", "b"))


def test_replaced_options_are_checked_too() -> None:
    with pytest.raises(LocalError, match="confirm is 2, but copies is 1"):
        msgspec.structs.replace(Options(copies=2, confirm=2), copies=1)
