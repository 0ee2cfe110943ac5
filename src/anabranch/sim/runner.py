"""Runs many seeds on all cores; one verdict per seed.

Worker processes are spawned, so that seeds do not share state. Verdicts are returned in the order
of the seeds.
"""

import gc
import multiprocessing
import time
from collections.abc import Iterator, Sequence

import msgspec

from anabranch.core.routing.registry import RoutingName
from anabranch.sim.faults import ANY
from anabranch.sim.mutants.catalog import planted
from anabranch.sim.simulation import Simulation
from anabranch.sim.swarm import Plan, Shape, draw
from anabranch.sim.verdict import SimVerdict


class Order(msgspec.Struct, frozen=True):
    """What is the same for all seeds of a run."""

    routing: RoutingName = "tree"
    shape: Shape = "any"
    brokers: int | None = None
    #: As in `fault_mix`.
    faults: str = ANY
    #: Names of mutants that are on.
    mutants: tuple[str, ...] = ()
    #: Whether streams have copies, and disks are lost.
    copies: bool = False

    def command(self, seed: int) -> str:
        """What to type to have one of its seeds again."""
        words = ["anabranch sim", f"--routing {self.routing}", f"--seed {seed}"]
        if self.shape != "any":
            words.append(f"--shape {self.shape}")
        if self.copies:
            words.append("--copies")
        if self.brokers is not None:
            words.append(f"--brokers {self.brokers}")
        if self.faults != ANY:
            words.append(f"--faults {self.faults}")
        return " ".join([*words, *(f"--plant {name}" for name in self.mutants)])


class Timed(msgspec.Struct, frozen=True):
    """A verdict and what it cost."""

    verdict: SimVerdict
    cpu_s: float


def plan_of(order: Order, seed: int) -> Plan:
    """The plan that a seed stands for."""
    return draw(
        seed,
        order.routing,
        shape=order.shape,
        brokers=order.brokers,
        faults=order.faults,
        copies=order.copies,
    )


def run_seed(order: Order, seed: int) -> Timed:
    """One simulation."""
    # Garbage is looked for among what this seed made, and once more at the end: a network is a knot
    # of few objects around large arrays, and Python would wait for more.
    gc.freeze()
    try:
        begin = time.process_time()
        with planted(*order.mutants):
            verdict = Simulation(plan_of(order, seed)).run()
        cpu_s = time.process_time() - begin
    finally:
        gc.collect()
        gc.unfreeze()
    return Timed(verdict, cpu_s)


def _run(job: tuple[Order, int]) -> Timed:
    return run_seed(*job)


def run_seeds(order: Order, seeds: Sequence[int], processes: int) -> Iterator[Timed]:
    """All of them."""
    jobs = [(order, seed) for seed in seeds]
    if processes <= 1 or len(jobs) == 1:
        yield from map(_run, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        yield from pool.imap(_run, jobs, chunksize=4)
