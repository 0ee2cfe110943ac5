"""The results of a sweep as a page: what was run, what was found, what it cost.

Of `swarm` simulations only; the workloads of the evaluation have a page of their own
(`anabranch bench routing`).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, median

from matplotlib.figure import Figure

from anabranch.spark.report import plots
from anabranch.spark.report.page import Cell, Page

Row = Mapping[str, object]

#: Parameters of which simulations are grouped.
_GROUPS = ("routing", "shape", "brokers", "subscriptions", "faults")
_FAILED_MAX = 50
_BINS = 40


def sweep_page(rows: Sequence[Row], title: str = "Sweep of simulations") -> str:
    """The page."""
    page = Page(title)
    swarm = [row for row in rows if row["workload"] == "swarm" and not row["error"]]
    failed = [row for row in rows if row["error"]]
    bad = [row for row in rows if _number(row, "anomalies")]
    verdict = "no anomaly" if not bad else f"anomalies in {len(bad):,} simulations"
    page.verdict(verdict, is_good=not bad and not failed)
    page.figures(
        [
            ("simulations", len(rows)),
            ("failed to run", len(failed)),
            ("anomalies", sum(int(_number(row, "anomalies")) for row in rows)),
            ("deliveries", sum(int(_number(row, "deliveries")) for row in rows)),
            ("CPU seconds", round(sum(_number(row, "cpu_s") for row in rows))),
        ]
    )
    if swarm:
        _draw(page, swarm)
    _tables(page, swarm, failed, bad)
    return page.html()


def _draw(page: Page, rows: Sequence[Row]) -> None:
    page.draw(
        "Traffic",
        plots.svg_of(_traffic(rows)),
        "Bytes over all links for each delivery to a subscriber.",
    )
    with plots.drawing() as (figure, axes):
        axes.hist([_number(row, "cpu_s") for row in rows], bins=_BINS, color=plots.BLUE, alpha=0.75)
        axes.set_xlabel("CPU seconds of a simulation")
        axes.set_ylabel("simulations")
    page.draw("Cost", plots.svg_of(figure))


def _traffic(rows: Sequence[Row]) -> Figure:
    by_routing: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if _number(row, "deliveries"):
            per_delivery = _number(row, "traffic_bytes") / _number(row, "deliveries")
            by_routing[str(row["routing"])].append((_number(row, "size"), per_delivery))
    with plots.drawing(3.2) as (figure, axes):
        colours = (plots.BLUE, plots.GREY, plots.GREEN)
        for (name, points), colour in zip(sorted(by_routing.items()), colours, strict=False):
            sizes = sorted({size for size, _ in points})
            middles = [median(cost for size, cost in points if size == each) for each in sizes]
            axes.plot([size for size, _ in points], [cost for _, cost in points], ".",
                      color=colour, alpha=0.25, markersize=5)  # fmt: skip
            axes.plot(sizes, middles, "-", color=colour, label=f"{name} (median)")
        axes.set_xlabel("brokers of the network")
        axes.set_ylabel("bytes per delivery")
        axes.set_yscale("log")
        axes.legend(loc="upper left")
    return figure


def _tables(page: Page, swarm: Sequence[Row], failed: Sequence[Row], bad: Sequence[Row]) -> None:
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in swarm:
        groups[tuple(row[name] for name in _GROUPS)].append(row)
    heads = (*_GROUPS, "simulations", "anomalies", "deliveries", "frames", "bytes", "CPU s, mean")
    lines: list[list[Cell]] = [
        [
            *map(str, key),
            len(its),
            *(int(sum(_number(row, name) for row in its)) for name in _SUMMED),
            float(mean(_number(row, "cpu_s") for row in its)),
        ]
        for key, its in sorted(groups.items(), key=lambda group: str(group[0]))
    ]
    page.table("Groups", heads, lines, "Sums over all seeds; 0 brokers or subscriptions: drawn.")
    names = Counter(str(row["anomaly_names"]) for row in bad)
    page.table(
        "Simulations with anomalies",
        ("workload", "routing", "shape", "faults", "seed", "anomalies"),
        [[*_place(row), str(row["anomaly_names"])] for row in bad[:_FAILED_MAX]],
        f"{len(bad):,} in all, {len(names):,} different ones.",
    )
    page.table(
        "Simulations that could not be run",
        ("workload", "routing", "shape", "faults", "seed", "error"),
        [[*_place(row), str(row["error"])] for row in failed[:_FAILED_MAX]],
    )


_SUMMED = ("anomalies", "deliveries", "frames", "traffic_bytes")


def _place(row: Row) -> list[Cell]:
    names = ("workload", "routing", "shape", "faults", "seed")
    return [str(row[name] if row[name] is not None else "") for name in names]


def _number(row: Row, name: str) -> float:
    value = row[name]
    return float(value) if isinstance(value, int | float) else 0.0
