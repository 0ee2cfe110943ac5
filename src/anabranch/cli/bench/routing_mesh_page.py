"""What `anabranch bench routing --routing mesh --write` makes: a section of the page, and more.

The page is the one that `--routing tree` makes. Of it, only the section about meshes is replaced,
or added at its end: the table of ours and the source's, the model, and the picture. All tables are
on a page of their own, in the folder of pictures. What is between the two marks belongs to this
module; `routing_page` keeps it when it writes the rest anew.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

from anabranch.cli.bench.routing_mesh_costs import relay_grid
from anabranch.cli.bench.routing_mesh_report import (
    MeshReport,
    changes_grids,
    claims_grid,
    mesh_grids,
    model_grid,
    placement_grid,
)
from anabranch.cli.bench.routing_page import MESH_BEGIN, MESH_END, NO_PLOT, mesh_section, table

_SECTION = """\
## Mesh: does choosing paths by load pay?

Markets in simulated meshes: brokers run their real code, on machines that handle one frame after
the other, so that what comes has to wait. This section is made by

    {command}

and all tables are on [a page of their own]({details}). Thirty brokers on twenty machines; twenty
publishers of one symbol each; thirty subscribers with five subscriptions each, to Zipf-distributed
symbols; three graphs of every kind. A machine takes 4.5 ms to match an event, 0.5 ms to handle it,
and 0.05 ms for any frame; a link takes 0.1 to 0.2 ms; loads are reported every 10 ms. What the
source (Li, Muthusamy, Jacobsen 2008, §5) does not say was chosen here, after first runs with fixed
and with dynamic paths at 100 to 300 events/s: the rate, 300 events/s, so that the busiest machine
is busy for about nine tenths of the time with fixed paths at degree 4; less where some graphs do
not keep up with that (degree 2, the ladder) and where brokers die; and links that come up together,
since otherwise trees depend on their order, as the row *one by one* shows. Where a graph does not
keep up, delays say how long the run was; such rows say so, and stand beside one in which all do.
Shapes are compared, not times.

*Where it pays.* Near the load at which fixed paths no longer keep up, and in a burst. They pay most
where links came up one after the other, and trees are the worse for it: fixed paths stay on those
trees.

*Where it does not*, with what we take for the reasons; none was tested apart. A network that keeps
up has little to gain: more than half of the copies of an event are at the broker that they are for,
whichever way they came, and that work cannot be moved. A path is changed only for a nearer one
([0016](adr/0016-copies-know-their-targets.md)), which keeps events from being delivered twice and
from running in circles, and leaves fewer alternatives than the source has: at degree 2 and on the
ladder hardly any, so that the delay grows with the distance as it does with fixed paths, and the
source's saving over ten and twelve links is not seen. Trees of other publishers are used in any
case, so that overlapping advertisements add nothing. Where everything is overloaded, another path
is overloaded too, and detours add to the work. In a full mesh paths are direct: nothing is gained,
and the death of a broker disturbs nobody but its own clients. At degree 4 the death of the brokers
that carry most is felt for a second or two, and far less than in the source: events that were lost
with it are asked for, and ways around it are known. Afterwards the ways are longer and the others
have more to do; paths by load are no better off then than fixed ones, and rather worse. *By waiting
bytes* hardly anything changes: what events wait for here is machines, not links.

*Matching once.* An event is matched at its origin, and at the edges it is for, by their own
subscriptions; brokers in between do not match. This is the default, and there is no option to
match again: where copies may take other paths, matching anew at every broker delivers twice and
runs in circles (*The printed algorithm in a model*), and naming the targets is what prevents it.
The source's saving, of matching at the origin only, leaves out the edges. With its 4.5 ms for a
matching, not to match in between saves much delay; with what matching takes here it is another
thing. *An event at a relay* has real processor times: passing an event on by its targets takes
less than matching it again only for very few targets behind a link, or where matching is hard (many
subscriptions that no equality tells apart); with many targets it takes more, and frames grow. So
processor time is not why relays do not match. They do not because targets are needed anyhow, and
because relays then hold no subscriptions (*Memory of routing tables*) and are told of none. All
other delays here are with 4.5 ms at every broker, as in the source's runs.

*Placement of patterns.* Where a pattern has few matches, detecting it at its publishers leaves out
what would travel for nothing: with one source most of what left it by simple placement stays where
it is, by cost and by topology (the source: 79.5 % less). With two sources about half is left, since
one has to come to the other. Delays do not fall with that, unlike the source's: the last event of a
match has the same way to go, or a longer one, since cost weighs the few matches lightly and goes to
the louder source where topology takes the fork in between. Only where a broker was overloaded by
what came there, and where topology sends many matches over links, delays are shorter. *Where it
does not pay*: patterns with more matches than events are best left alone, and cost leaves some of
them alone, topology none; a source at home leaves nothing to gain; and in a network that is busy
with other things, what patterns cost hardly shows.

*Changes and deaths* are counted for all three routings, in small networks that are the same for
all. [ROUTING](ROUTING.md#what-each-costs) has them side by side.
"""

_DETAILS = """\
# Mesh routing: all tables

Made by

    {command}

The same command gives the same tables, but for processor times and memory, which are measured. What
it means is in [the section about meshes](../{page}).
"""


def write_mesh_page(report: MeshReport, path: Path) -> list[str]:
    """Write the section, the page with all tables, and the picture; lines about what was done."""
    folder = path.parent / path.stem.lower()
    folder.mkdir(parents=True, exist_ok=True)
    details, picture = folder / "mesh.md", folder / "mesh.svg"
    has_plot = _plot(report, picture)
    details.write_text("\n".join(_details(report, path.name)), encoding="utf-8")
    link = f"{folder.name}/{picture.name}" if has_plot else ""
    section = "\n".join(_section(report, f"{folder.name}/{details.name}", link))
    _put_section(path, f"{MESH_BEGIN}\n\n{section}\n{MESH_END}\n")
    if not has_plot:
        return [NO_PLOT, f"wrote {path} and {details}"]
    return [f"wrote {path}, {details} and {picture}"]


def _put_section(path: Path, section: str) -> None:
    """Replace the section in a page, or add it at the end."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    before = mesh_section(text)
    rest = f"{text}\n" if text else ""
    text = text.replace(before, section) if before else rest + section
    path.write_text(text, encoding="utf-8")


def _plot(report: MeshReport, picture: Path) -> bool:
    try:
        from anabranch.cli.bench.routing_mesh_plot import (  # noqa: PLC0415 - needs matplotlib
            draw_mesh_picture,
        )
    except ImportError:
        return False
    draw_mesh_picture(report, picture)
    return True


def _section(report: MeshReport, details: str, link: str) -> Iterator[str]:
    yield _SECTION.format(command=_command(report), details=details)
    if link:
        yield f"![Delays with fixed paths and with paths by load]({link})\n"
    if report.claims:
        yield from table(claims_grid(report.claims), "###")
    if report.model:
        yield from table(model_grid(report.model), "###")
    if report.relayed:
        yield from table(relay_grid(report.relayed), "###")
    if report.placed:
        yield from table(placement_grid(report.placed), "###")
    for grid in changes_grids(report):
        yield from table(grid, "###")


def _details(report: MeshReport, page: str) -> Iterator[str]:
    yield _DETAILS.format(command=_command(report), page=page)
    for grid in mesh_grids(report):
        yield from table(grid)


def _command(report: MeshReport) -> str:
    words = ["anabranch", "bench", "routing", "--routing", "mesh", "--part", report.part]
    words += ["--scale", f"{report.scale:g}", "--seed", str(report.seed), "--write", "PAGE"]
    return shlex.join(words)
