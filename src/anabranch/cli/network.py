"""`anabranch network`: look at network files, begin one, and make certificates for trials."""

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer
from rich.table import Table

from anabranch.cli import mesh_view, network_changes
from anabranch.cli.errors import CommandError
from anabranch.cli.network_view import address, drawing, state_text, summary
from anabranch.cli.output import console, print_json
from anabranch.config.addresses import PORT_NAMES
from anabranch.config.network_file import NetworkFile, load
from anabranch.config.secrets import create_secret
from anabranch.config.shape import MeshShape
from anabranch.config.survey import Survey, survey
from anabranch.config.toml_reader import quoted_text

app = typer.Typer(
    name="network",
    help="Write, check and change network files; make trial certificates.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
network_changes.register(app)

ShapeName = Literal["single", "pair", "star", "chain", "redundant", "wide", "mesh", "braided"]
SHAPES: tuple[ShapeName, ...] = get_args(ShapeName)
FilePath = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]


@app.command()
def check(
    file: FilePath,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check a network file, explain the shape of its network and draw it.

    Says where brokers listen, how far events travel, and whose loss would cut off whom. Of a mesh,
    which cannot be drawn, it lists who has links to whom.
    """
    loaded = load(file)
    seen = survey(loaded.network)
    if as_json:
        print_json(document(loaded, seen))
        return
    out = console()
    is_mesh = isinstance(loaded.shape, MeshShape)
    for line in mesh_view.summary(loaded, seen) if is_mesh else summary(loaded, seen):
        out.print(line, soft_wrap=True)
    out.print()
    for line in mesh_view.neighbours(loaded.network) if is_mesh else drawing(loaded.network):
        out.print(line, soft_wrap=True)
    out.print()
    out.print(_addresses(loaded))


@app.command()
def new(
    shape: Annotated[ShapeName, typer.Argument(metavar="SHAPE", show_default=False)],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file instead of stdout.")
    ] = None,
    no_secret: Annotated[
        bool, typer.Option("--no-secret", help="Make no secret for the links between brokers.")
    ] = False,
) -> None:
    """Write a commented example of a network file.

    SHAPE is single, pair, star, chain, redundant (sites of two and three relays), wide,
    mesh or braided (a mesh of ten). With --out, a random secret that brokers prove to each other
    is written beside it, into a file of the same name with the suffix .secret.
    """
    text = example(shape)
    if out is None:
        typer.echo(text, nl=False)
        return
    secret = None if no_secret else out.with_suffix(".secret")
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text if secret is None else with_secret(text, secret.name))
            if secret is not None:
                _make_secret(secret, out)
    except FileExistsError:
        raise CommandError(f"{out} is there already; remove it or choose another name") from None
    typer.echo(f"wrote {out}; see: anabranch network check {out}", err=True)
    if secret is not None:
        typer.echo(f"wrote {secret}; every broker needs it, and nobody else", err=True)


def _make_secret(path: Path, out: Path) -> None:
    try:
        create_secret(path)
    except FileExistsError:
        out.unlink()
        raise CommandError(
            f"{path} is there already, and a secret is not overwritten; remove it, choose another"
            " name, or use --no-secret and name it as secret_file yourself"
        ) from None


def with_secret(text: str, name: str) -> str:
    """The text of an example in which the brokers prove a secret."""
    head, key, rest = text.partition("revision = 1\n")
    assert key, "an example has a revision"
    lines = "# What brokers prove to each other; mode 0600, on every machine, in no repository.\n"
    return f"{head}{key}{lines}secret_file = {quoted_text(name)}\n{rest}"


@app.command()
def certificates(
    file: FilePath,
    *,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long they are valid.")] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make the brokers' files anew, even if they are there.")
    ] = False,
) -> None:
    """Make an authority and a certificate for every broker, for trials.

    Writes the files that [tls] names and keeps those that are there already.
    """
    loaded = load(file)
    try:
        from anabranch.config.certificates import (  # noqa: PLC0415 - needs cryptography
            make_certificates,
        )
    except ImportError:
        raise CommandError(
            "making certificates needs the package cryptography;"
            " install it with: pip install 'anabranch[certificates]'"
        ) from None
    made = make_certificates(loaded, days=days, renew=renew)
    for path in made.written:
        typer.echo(f"wrote {path}")
    for path in made.kept:
        typer.echo(f"kept {path}")


def example(shape: ShapeName) -> str:
    """The commented example of a shape."""
    place = resources.files("anabranch.config") / "examples" / f"{shape}.toml"
    return place.read_text(encoding="utf-8")


def document(file: NetworkFile, seen: Survey) -> dict[str, object]:
    """All that `check` says, for programs."""
    network = file.network
    return {
        "network": file.name,
        "revision": file.revision,
        "routing": file.routing,
        "tls": file.tls is not None,
        "plaintext": file.plaintext,
        "secret_file": None if file.secret_file is None else str(file.secret_file),
        "brokers": {
            name: {
                "role": "edge" if name in seen.edges else "relay",
                "sites": network.sites_of(name),
                "links": network.links_of(name),
                "host": broker.host,
                "ports": {port: broker.port(port) for port in PORT_NAMES},
                "state": str(broker.state),
            }
            for name, broker in file.brokers.items()
        },
        "sites": {
            site: {"brokers": network.members(site), "joined_to": network.neighbours(site)}
            for site in network.sites
        },
        "edges": seen.edges,
        "relays": seen.relays,
        "links": seen.links,
        "longest_path": {"hops": seen.hops, "brokers": seen.longest_path},
        "cuts": seen.cuts,
        "link_cuts": [{"link": link, "parts": parts} for link, parts in seen.link_cuts.items()],
        "idle_sites": seen.idle_sites,
    }


def _addresses(file: NetworkFile) -> Table:
    table = Table()
    for title in ("broker", *PORT_NAMES, "state"):
        table.add_column(title)
    for name, broker in file.brokers.items():
        ports = [address(file, broker, port) for port in PORT_NAMES]
        table.add_row(name, *ports, state_text(file, broker))
    return table
