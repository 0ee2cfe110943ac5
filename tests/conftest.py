"""How much is generated: the profiles of Hypothesis, one per tier.

`test` (the default) and `fast` draw the same examples in every run, so that a failure in one place
is a failure everywhere. `soak` draws new ones from the seed it is given, many more of them, and
remembers the failing ones. ANABRANCH_HYPOTHESIS_PROFILE chooses; `--hypothesis-profile` overrules.
No profile has a deadline: how long an example takes says more about the machine than about us.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

RELAXED = [HealthCheck.too_slow]

settings.register_profile(
    "test", max_examples=150, deadline=None, derandomize=True, suppress_health_check=RELAXED
)
settings.register_profile("fast", parent=settings.get_profile("test"), max_examples=25)
settings.register_profile(
    "soak", max_examples=1_000, deadline=None, print_blob=True, suppress_health_check=RELAXED
)
settings.load_profile(os.environ.get("ANABRANCH_HYPOTHESIS_PROFILE", "test"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the tests that wait for processes evenly among the others, a module at a time: side
    by side they would leave the processors idle."""
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    waiting = [name for name in modules if "/process/" in name]
    others = [name for name in modules if "/process/" not in name]
    places = [
        (number / max(1, len(names)), name)
        for names in (waiting, others)
        for number, name in enumerate(names)
    ]
    items[:] = [item for _, name in sorted(places) for item in modules[name]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the scenarios of tests/scenario print into their files",
    )
