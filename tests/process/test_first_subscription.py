"""The first subscription on a machine whose kernels are not compiled yet.

To compile all of them takes a minute, in which nothing else is shown than in some seconds. So this
machine has most of them already, as after a compilation that was interrupted.
"""

import shutil
from pathlib import Path

import pytest

from anabranch.client.client import connect
from anabranch.matching.kernel_compiler import KernelCompiler
from anabranch.matching.kernels.machine import cache_directory
from tests.broker_parts import Brokers
from tests.process_parts import BRISK, run, until

pytestmark = pytest.mark.slow

ONE = '[network]\nname = "one"\n[tree]\na = []\n'
#: Kernels that are not compiled yet, which takes some seconds where nothing else runs.
MISSING = ("read_conjunction.look-", "covered.covered-")
COMPILED_WITHIN_S = 1_200.0
LOADED = "the matching kernels are loaded"


def fill(cache: Path) -> set[str]:
    """Make a cache with all kernels but the missing ones; the names of these."""
    KernelCompiler().load()
    complete = cache_directory()
    missing = set()
    for file in complete.rglob("*.nb?"):
        if file.name.startswith(MISSING):
            missing.add(file.name)
        else:
            place = cache / complete.name / file.relative_to(complete)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place)
    return missing


def test_the_first_subscription_gets_its_events_while_the_kernels_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "kernels"
    missing = fill(cache)
    assert len(missing) >= 2 * len(MISSING)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))

    async def story() -> None:
        client = await connect(brokers.address("a"), name="first", options=BRISK)
        subscription = await client.subscribe("price > 10 AND note LIKE '%urgent%'")
        await client.publish({"price": 9, "note": "urgent"})
        await client.publish({"price": 11, "note": "is urgent"})
        assert (await subscription.get())["price"] == 11
        said = brokers["a"].said()
        assert "matching with numpy meanwhile" in said
        assert LOADED not in said
        assert (await brokers.status("a")).kernels == "loading"
        await until(
            lambda: LOADED in brokers["a"].said(), "the kernels are compiled", COMPILED_WITHIN_S
        )
        assert (await brokers.status("a")).kernels == "loaded"
        assert {file.name for file in cache.rglob("*.nb?")} >= missing
        await client.publish({"price": 12, "note": "not"})
        await client.publish({"price": 13, "note": "urgently"})
        assert (await subscription.get())["price"] == 13
        await client.close()

    with Brokers(tmp_path, ONE) as brokers:
        brokers.start("a")
        run(story(), COMPILED_WITHIN_S)
