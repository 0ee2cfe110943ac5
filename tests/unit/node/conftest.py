"""A bound on the size of files, for tests in which the disk fails."""

import resource
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def file_size_max() -> Iterator[Callable[[int], None]]:
    """Lets this process write no file beyond a size, until the test is over."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size_bytes: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
