"""`anabranch network`: check and create network files, and create certificates for trials."""

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer
from rich.table import Table

from anabranch.cli import mesh_view, network_changes
from anabranch.cli.errors import CommandError
from anabranch.cli.network_view import address, drawing, state_text, summary
from anabranch.cli.output import print_json
from anabranch.cli.screen import console
from anabranch.config.addresses import PORT_NAMES
from anabranch.config.network_file import NetworkFile, load
from anabranch.config.secrets import create_secret
from anabranch.config.shape import MeshShape
from anabranch.config.survey import Survey, survey
from anabranch.config.toml_reader import quoted_text

app = typer.Typer(
    name="network",
    help="Create, check and change network files; certificates.",
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
    """Check a network file, draw its network and explain its shape.

    Prints the addresses of brokers, the longest path, and which failures would split the network.
    For a mesh it lists the links of each broker in place of a drawing.
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
        bool, typer.Option("--no-secret", help="Do not create a secret for links between brokers.")
    ] = False,
) -> None:
    """Write a commented example of a network file.

    SHAPE is single, pair, star, chain, redundant (sites of two and three relays), wide, mesh or
    braided (a mesh of ten brokers). With --out, a random secret with which brokers authenticate
    each other is written beside it, to a file of the same name with the suffix .secret.
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
                _create_secret_file(secret, out)
    except FileExistsError:
        raise CommandError(f"{out} already exists; remove it or choose another name") from None
    typer.echo(f"wrote {out}; see: anabranch network check {out}", err=True)
    if secret is not None:
        typer.echo(f"wrote {secret}; copy it to every broker and keep it private", err=True)


def _create_secret_file(path: Path, out: Path) -> None:
    try:
        create_secret(path)
    except FileExistsError:
        out.unlink()
        raise CommandError(
            f"{path} already exists, and secrets are not overwritten; remove it, choose another"
            " name, or use --no-secret and set secret_file in the file"
        ) from None


def with_secret(text: str, name: str) -> str:
    """The text of an example with a `secret_file`."""
    head, key, rest = text.partition("revision = 1\n")
    assert key, "an example has a revision"
    lines = "# Shared secret of the brokers; mode 0600, on every machine, never in a repository.\n"
    return f"{head}{key}{lines}secret_file = {quoted_text(name)}\n{rest}"


@app.command()
def certificates(
    file: FilePath,
    *,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Validity in days.")] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace existing keys and certificates of brokers.")
    ] = False,
) -> None:
    """Create a CA and a certificate for every broker, for trials.

    Writes the files that [tls] names. Existing files are kept.
    """
    loaded = load(file)
    try:
        from anabranch.config.certificates import (  # noqa: PLC0415 - needs cryptography
            make_certificates,
        )
    except ImportError:
        raise CommandError(
            "creating certificates requires the package cryptography;"
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
    """The JSON document of `check`."""
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
