"""The world performs the effects about copies as a process does, in order."""

from random import Random

from anabranch.core import contract
from anabranch.core.broker import BrokerConfig
from anabranch.model.network import Network
from anabranch.sim.world import SimHost, Weather, World


class Told:
    """What a broker is told about its store."""

    def __init__(self) -> None:
        self.stimuli: list[contract.Stimulus] = []

    def __call__(self, _now: float, _name: str, what: object) -> None:
        is_ours = isinstance(what, contract.Synced) and what.number >= 1_000
        if is_ours or isinstance(what, contract.LogRead | contract.RowsRead | contract.CopyFull):
            assert isinstance(what, contract.Stimulus)
            self.stimuli.append(what)


def test_a_broker_hears_of_a_refusal_before_the_sync_and_reads_its_copy() -> None:
    world = World([BrokerConfig("a", Network({"a": ["a"]}))], Random(1), Weather())
    world.start("a")
    world.run_until(1.0)
    world.listener = told = Told()
    host = world.hosts["a"]
    world._perform(
        host,
        [
            contract.OpenCopy("x", 7),
            contract.Append(7, b"seven", "x"),
            contract.Append(8, b"eight", "x"),
            contract.Read(1, 7, 8, 10**6, "x"),
            contract.Sync(1_000),
        ],
    )
    world.run_until(2.0)
    assert told.stimuli == [
        contract.LogRead(1, 7, (b"seven", b"eight"), "x"),
        contract.Synced(1_000),
    ]
    told.stimuli.clear()
    host.disk.refuses_copies = True
    world._perform(host, [contract.Append(9, b"nine", "x"), contract.Sync(1_001)])
    world.run_until(3.0)
    assert told.stimuli == [contract.CopyFull("x", 8), contract.Synced(1_001)]
    world._perform(host, [contract.OpenCopy("y", 1), contract.DropCopy("y"), contract.Sync(1_002)])
    world.run_until(4.0)
    world.kill("a")
    assert host.disk.recover().copies == {"x": contract.RecoveredCopy(7, 8)}


def test_a_broker_that_restarts_keeps_what_is_synced_and_reads_rows() -> None:
    world = World([BrokerConfig("a", Network({"a": ["a"]}))], Random(1), Weather())
    world.start("a")
    world.run_until(1.0)
    host = world.hosts["a"]
    life = host.life
    puts = [contract.Put("copy_rows", f"x\x1f{key}", b"v") for key in range(3)]
    world._perform(
        host, [contract.OpenCopy("x", 7), contract.Append(7, b"7", "x"), *puts, contract.Sync(1000)]
    )
    world.run_until(2.0)
    world.listener = told = Told()
    world._perform(
        host,
        [
            contract.ReadRows(5, "copy_rows", "x\x1f", "x\x1f0", 1),
            contract.CutCopy("x", 6),
            contract.Sync(1001),
        ],
    )
    world.run_until(3.0)
    assert contract.RowsRead(5, (("x\x1f1", b"v"),), is_last=False) in told.stimuli
    assert host.disk.recover().copies == {"x": contract.RecoveredCopy(7, 6)}
    world._perform(host, [contract.Restart("for a test"), contract.Put("t", "k", b"v")])
    world.run_until(3.05)
    assert not _is_up(host)
    world.run_until(4.0)
    assert _is_up(host)
    assert host.life > life
    assert (world.count.restarts, world.count.kills) == (1, 0)


def _is_up(host: SimHost) -> bool:
    return host.broker is not None
