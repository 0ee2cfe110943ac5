"""One simulation of a sweep: its parameters in, a row out, whatever happens.

A simulation that cannot be run, or breaks, is a row with its parameters and what went wrong: the
seed is worth more than the job. CPU time is that of the process while it ran.

This module keeps no state.
"""

import time
import traceback
from collections import Counter
from pathlib import Path

import msgspec

from anabranch.sim.evaluation import crashing, growing, nested, selective
from anabranch.sim.evaluation.meter import Meter
from anabranch.sim.evaluation.stage import Variant
from anabranch.sim.runner import Order, plan_of
from anabranch.sim.simulation import Simulation
from anabranch.sim.swarm import Shape
from anabranch.spark.sweep_grid import VARIANTS, Run

_encoder = msgspec.json.Encoder(order="deterministic")


class Outcome(msgspec.Struct, kw_only=True):
    """What came of a simulation; what is not known stays None."""

    anomalies: int = 0
    #: Name → how many, as JSON.
    anomaly_names: str = "{}"
    #: Brokers of the network.
    size: int | None = None
    published: int | None = None
    deliveries: int | None = None
    crashes: int | None = None
    lost_frames: int | None = None
    interest_changes: int | None = None
    #: Over all links: frames, and bytes of all kinds; then those of events and of control.
    frames: int | None = None
    traffic_bytes: int | None = None
    event_bytes: int | None = None
    control_bytes: int | None = None
    simulated_s: float | None = None
    cpu_s: float = 0.0
    digest: str = ""
    #: Of a workload of the evaluation, everything it counted, as JSON.
    point: str = ""
    #: Why there is nothing else.
    error: str = ""


def simulate(run: Run) -> Outcome:
    """Run it."""
    begin = time.process_time()
    try:
        outcome = _swarm(run) if run.workload == "swarm" else _evaluation(run)
    except Exception as error:  # noqa: BLE001 - whatever it was, it is a row
        outcome = Outcome(error=_told(error))
    outcome.cpu_s = round(time.process_time() - begin, 3)
    return outcome


def _swarm(run: Run) -> Outcome:
    shape: Shape = msgspec.convert(run.shape, Shape)
    plan = plan_of(Order(run.routing, shape, run.brokers or None, run.faults), run.seed)
    plan = msgspec.structs.replace(plan, subscriptions=run.subscriptions)
    simulation = Simulation(plan)
    meter = Meter(simulation.world)
    verdict = simulation.run()
    links = meter.counts().everywhere()
    names = Counter(anomaly.name for anomaly in verdict.anomalies)
    return Outcome(
        anomalies=len(verdict.anomalies),
        anomaly_names=_encoder.encode(names).decode(),
        size=verdict.brokers,
        published=verdict.published,
        deliveries=verdict.deliveries,
        crashes=verdict.crashes,
        lost_frames=verdict.lost_frames,
        interest_changes=verdict.interest_changes,
        frames=links.frames,
        traffic_bytes=links.all_bytes,
        event_bytes=links.event_bytes,
        control_bytes=links.control_bytes,
        simulated_s=verdict.simulated_s,
        digest=verdict.digest,
    )


def _evaluation(run: Run) -> Outcome:
    variant = next(each for each in VARIANTS[run.workload] if each.name == run.variant)
    point = _measured(run, variant)
    anomalies = 0
    if isinstance(point, crashing.CrashingRun):
        anomalies = sum(group.missing + group.repeated for group in point.groups)
    deliveries = getattr(point, "deliveries", None)
    return Outcome(
        anomalies=anomalies,
        published=point.published,
        deliveries=deliveries,
        point=_encoder.encode(point).decode(),
    )


def _measured(
    run: Run, variant: Variant
) -> selective.SelectivePoint | growing.GrowingPoint | crashing.CrashingRun | nested.NestedPoint:
    if run.workload == "selective":
        return selective.measure(variant, run.publishers, run.scale, run.seconds, run.seed)
    if run.workload == "growing":
        length = (run.changes, run.events_per_change)
        return growing.measure(variant, run.edges, run.scale, *length, run.seed)
    if run.workload == "crashing":
        return crashing.measure(variant, run.scale, run.seed)
    return nested.measure(variant, run.scale, run.seconds, run.seed)


def _told(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return f"{type(error).__name__} in {place}: {error}"
