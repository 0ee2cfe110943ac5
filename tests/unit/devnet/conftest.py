"""Waiting for something that another process does."""

import time
from collections.abc import Callable

import pytest

BOUND_S = 120.0


def _wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not is_so():
        assert time.monotonic() < deadline, f"not within {BOUND_S:.0f} s: {what}"
        time.sleep(0.01)


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool], str], None]:
    return _wait_until
