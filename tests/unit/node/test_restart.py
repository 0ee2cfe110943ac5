"""A broker that wants a restart begins its next life from its own store, in the same process."""

import asyncio
from pathlib import Path
from time import monotonic

import pytest

from anabranch.core import contract
from anabranch.core.origin.log_tail import RowsRecord, encode_record
from anabranch.model.errors import LocalError
from anabranch.node import process
from anabranch.node.node import Node
from tests.node_parts import RawClient, config, until


class QuietCollector:
    """The collector of the test run is left alone."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


class Lives:
    """A process without signals, and the nodes that it had."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: asyncio.Queue[process.Request] = asyncio.Queue()
        self.nodes: list[Node] = []
        self.began_at: list[float] = []
        monkeypatch.setattr(process, "Collector", QuietCollector)
        monkeypatch.setattr(process, "return_large_blocks", lambda: None)
        monkeypatch.setattr(process, "_listen_for_signals", lambda: self.requests)
        monkeypatch.setattr(process, "RESTART_S", 0.2)
        self._config = config("a", place)
        self.task = asyncio.ensure_future(process._serve(self._config, self._ready, pytest.fail))

    def _ready(self, node: Node) -> None:
        self.nodes.append(node)
        self.began_at.append(monotonic())

    async def wait_for(self, count: int) -> Node:
        await until(lambda: self.task.done() or len(self.nodes) == count)
        return self.nodes[count - 1]

    def restart(self) -> None:
        driver = self.nodes[-1]._driver
        driver._perform[contract.Restart](contract.Restart("for a test"))


def test_a_restart_begins_the_next_life_with_what_was_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        lives = Lives(tmp_path, monkeypatch)
        node = await lives.wait_for(1)
        client = await RawClient.at(node, "c")
        client.publish({"x": 1})
        await until(lambda: client.confirmed() == 1)
        lives.restart()
        # Once is enough.
        lives.restart()
        again = await lives.wait_for(2)
        await until(lambda: client.end)
        assert again is not node
        assert again.config == node.config
        assert again.broker.life > node.broker.life
        assert again.status().log is not None
        assert again.broker.origin is not None
        assert again.broker.origin.head >= 1
        # Not sooner than that, however short the lives are.
        assert lives.began_at[1] - lives.began_at[0] > 0.1
        lives.requests.put_nowait("end")
        assert await lives.task == ""
        assert len(lives.nodes) == 2

    with caplog.at_level("INFO", "anabranch.node"):
        asyncio.run(story())
    assert sum("restarting: for a test" in text for text in caplog.messages) == 1


def test_a_process_that_is_ended_does_not_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        for waits in (False, True):
            lives = Lives(tmp_path, monkeypatch)
            monkeypatch.setattr(process, "RESTART_S", 1e6)
            node = await lives.wait_for(1)
            lives.restart()
            if waits:
                await node.stopped()
            lives.requests.put_nowait("end")
            assert await lives.task == ""
            assert len(lives.nodes) == 1

    asyncio.run(story())


def test_other_requests_wait_for_the_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        lives = Lives(tmp_path, monkeypatch)
        node = await lives.wait_for(1)
        lives.restart()
        await node.stopped()
        lives.requests.put_nowait("depart")
        again = await lives.wait_for(2)
        await until(lambda: again.is_drained)
        lives.requests.put_nowait("end")
        assert await lives.task == ""

    asyncio.run(story())


def test_a_failure_is_not_followed_by_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        lives = Lives(tmp_path, monkeypatch)
        node = await lives.wait_for(1)
        lives.restart()
        node.fail("the disk is gone")
        assert await lives.task == "the disk is gone"
        assert len(lives.nodes) == 1

    asyncio.run(story())


def test_effects_about_copies_reach_the_store(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(config("a", tmp_path))
        await node.start()
        driver, seen = node._driver, []
        monitored, sync = node.broker.handle, 10**6

        def handle(now: float, stimulus: contract.Stimulus) -> contract.Effects:
            if isinstance(stimulus, contract.RowsRead) or stimulus == contract.Synced(sync):
                seen.append(stimulus)
                return []
            return monitored(now, stimulus)

        node.broker.handle = handle  # type: ignore[method-assign]
        record = encode_record(RowsRecord(0, []))
        effects: list[contract.Effect] = [
            contract.OpenCopy("x", 7),
            contract.Append(7, record, "x"),
            contract.Append(8, record, "x"),
            contract.Put("copy_rows", "x\x1fk", b"v"),
            contract.CutCopy("x", 7),
        ]
        for effect in effects:
            driver._perform[type(effect)](effect)
        # Rows that are not synced may be missing from what is read.
        driver._perform[contract.Sync](contract.Sync(sync))
        await until(lambda: seen)
        assert node.store.pieces("x")[0].last_tick == 7
        driver._perform[contract.ReadRows](contract.ReadRows(5, "copy_rows", "x\x1f", "", 100))
        await until(lambda: len(seen) == 2)
        assert seen[1] == contract.RowsRead(5, (("x\x1fk", b"v"),), is_last=True)
        first = node.broker.origin.head + 1000  # type: ignore[union-attr]
        driver._perform[contract.DropCopy](contract.DropCopy(""))
        driver._perform[contract.OpenCopy](contract.OpenCopy("", first))
        await node.drain()
        with pytest.raises(LocalError, match="do not belong together"):
            # Nothing says that this log is being fetched.
            await Node(config("a", tmp_path)).start()

    asyncio.run(story())
