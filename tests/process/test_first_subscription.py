"""The first subscription on a machine whose kernels are not compiled yet."""

from pathlib import Path

import pytest

from anabranch.client.client import connect
from tests.broker_parts import Brokers
from tests.process_parts import BRISK, run, until

pytestmark = pytest.mark.slow

ONE = '[network]\nname = "one"\n[tree]\na = []\n'
#: Compiling takes a minute or two where nothing else runs.
COMPILED_WITHIN_S = 400.0
LOADED = "the matching kernels are loaded"


def test_the_first_subscription_gets_its_events_while_the_kernels_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "kernels"
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
        assert list(cache.rglob("*.nbc"))
        await client.publish({"price": 12, "note": "not"})
        await client.publish({"price": 13, "note": "urgently"})
        assert (await subscription.get())["price"] == 13
        await client.close()

    with Brokers(tmp_path, ONE) as brokers:
        brokers.start("a")
        run(story(), COMPILED_WITHIN_S)
