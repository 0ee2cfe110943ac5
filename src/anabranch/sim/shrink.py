"""Minimises a failing seed: fewer faults, fewer applications, less time.

Every step tries one simplification and keeps it if the same kind of anomaly still occurs. The
result is another plan with the same seed; it is printed, because the seed alone does not describe
it.
"""

from collections.abc import Iterator

import msgspec

from anabranch.check.checker import Anomaly
from anabranch.core.options import Options
from anabranch.sim.faults import FaultMix
from anabranch.sim.simulation import Simulation
from anabranch.sim.swarm import Plan


def shrink(plan: Plan, anomaly: Anomaly) -> tuple[Plan, Anomaly]:
    """The simplest plan found that still has an anomaly of this kind, and that anomaly."""
    progress = True
    while progress:
        progress = False
        for simpler in _simpler(plan):
            found = Simulation(simpler).run().anomalies
            same = next((each for each in found if each.name == anomaly.name), None)
            if same is not None:
                plan, anomaly = simpler, same
                progress = True
                break
    return plan, anomaly


def _simpler(plan: Plan) -> Iterator[Plan]:
    """Plans that are simpler by one step."""
    for field in msgspec.structs.fields(FaultMix):
        if field.name not in {"jitter_s", "sync_s"} and getattr(plan.faults, field.name) > 0:
            faults = msgspec.structs.replace(plan.faults, **{field.name: 0.0})
            yield msgspec.structs.replace(plan, faults=faults)
    for name in ("explicit_starts", "limited_events"):
        if getattr(plan, name) > 0:
            yield msgspec.structs.replace(plan, **{name: 0.0})
    if plan.options.log_ticks_max != Options().log_ticks_max:
        roomy = Options()
        bounds: dict[str, str | int] = {
            "retention": roomy.retention,
            "log_ticks_max": roomy.log_ticks_max,
        }
        options = msgspec.structs.replace(plan.options, **bounds)
        yield msgspec.structs.replace(plan, options=options)
    if plan.restless > 0:
        yield msgspec.structs.replace(plan, restless=0.0)
    if plan.sinks > 0:
        yield msgspec.structs.replace(plan, sinks=plan.sinks - 1)
    for name in ("publishers", "subscribers"):
        if getattr(plan, name) > 1:
            yield msgspec.structs.replace(plan, **{name: getattr(plan, name) - 1})
    if plan.churn > 0.2:
        yield msgspec.structs.replace(plan, churn=plan.churn / 2)
    if plan.rate > 2:
        yield msgspec.structs.replace(plan, rate=plan.rate / 2)
    if plan.fault_s > 1.5:
        yield msgspec.structs.replace(plan, fault_s=plan.fault_s * 0.8)
