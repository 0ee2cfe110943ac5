"""`anabranch network`: check, create and edit network files, apply them, create trial certificates.

The commands that add and remove write the next revision of a file and nothing else; `apply` changes
a network that runs on this machine to match the file. `config.network_edit` and `devnet.resize`
define the permitted changes.
"""

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer
from rich.table import Table

from anabranch.cli.errors import CommandError
from anabranch.cli.network_view import address, picture, state_text, summary
from anabranch.cli.output import print_json
from anabranch.cli.screen import console
from anabranch.config import network_edit
from anabranch.config.addresses import LOOPBACK, PORT_NAMES
from anabranch.config.network_edit import At
from anabranch.config.network_file import NetworkFile, dump, load
from anabranch.config.network_location import home_of
from anabranch.config.replication import streams_kept
from anabranch.config.secrets import create_secret
from anabranch.config.survey import Survey, survey
from anabranch.config.toml_reader import quoted_text
from anabranch.devnet import control_channel

app = typer.Typer(
    name="network",
    help="Create, check and change network files; certificates.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

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

    Prints the addresses of brokers, the longest path, which failures would split the network, and
    the keepers of replicated streams. For a mesh it lists the links of each broker in place of a
    drawing.
    """
    loaded = load(file)
    seen = survey(loaded.network)
    if as_json:
        print_json(document(loaded, seen))
        return
    out = console()
    for line in summary(loaded, seen):
        out.print(line, soft_wrap=True)
    out.print()
    for line in picture(loaded):
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
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
    if as_json:
        print_json({"written": [*map(str, made.written)], "kept": [*map(str, made.kept)]})
        return
    for path in made.written:
        typer.echo(f"wrote {path}")
    for path in made.kept:
        typer.echo(f"kept {path}")


def example(shape: ShapeName) -> str:
    place = resources.files("anabranch.config") / "examples" / f"{shape}.toml"
    return place.read_text(encoding="utf-8")


def document(file: NetworkFile, seen: Survey) -> dict[str, object]:
    network = file.network
    streams = {edge: file.stream(edge) for edge in network.edges}
    keeps = streams_kept(streams)
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
                "stream": streams.get(name),
                "keeps": keeps.get(name, []),
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
    """The addresses of brokers, and which keep which streams if any is replicated."""
    table = Table()
    for title in ("broker", *PORT_NAMES, "state"):
        table.add_column(title)
    streams = {edge: file.stream(edge) for edge in file.network.edges}
    keeps = streams_kept(streams)
    if keeps:
        table.add_column("keepers")
        table.add_column("streams kept", justify="right")
    for name, broker in file.brokers.items():
        ports = [address(file, broker, port) for port in PORT_NAMES]
        keepers = streams[name].keepers if name in streams else ()
        kept = [" ".join(keepers) or "–", f"{len(keeps.get(name, ())):,}"]
        table.add_row(name, *ports, state_text(file, broker), *(kept if keeps else ()))
    return table


Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Broker = Annotated[str, typer.Argument(metavar="BROKER", show_default=False)]
Host = Annotated[str, typer.Option("--host", help="Host that others connect to.")]
Port = typer.Option(min=0, max=65_535, help="Port; 0: chosen by `anabranch up`.")
PortNumber = Annotated[int, Port]
Listen = Annotated[str, typer.Option("--listen", help="Address to listen on. Default: the host.")]
State = Annotated[Path | None, typer.Option("--state", help="State directory.")]


@app.command("add-broker")
def add_broker(
    file: FilePath,
    name: Name,
    *,
    site: Annotated[str | None, typer.Option("--site", help="Add a relay to this site.")] = None,
    below: Annotated[
        str | None,
        typer.Option("--below", help="Add an edge below this site, or this broker of a tree."),
    ] = None,
    link_to: Annotated[
        list[str] | None,
        typer.Option("--link-to", help="In a mesh: link to this broker; repeatable."),
    ] = None,
    relay: Annotated[bool, typer.Option("--relay", help="In a mesh: accept no clients.")] = False,
    host: Host = LOOPBACK,
    clients: PortNumber = 0,
    links: PortNumber = 0,
    observe: PortNumber = 0,
    listen: Listen = "",
    state: State = None,
) -> None:
    """Add a broker to a network file.

    Writes the next revision of the file and keeps its comments. The previous revision stays beside
    it.
    """
    at = At(host=host, clients=clients, links=links, observe=observe, listen=listen, state=state)
    if [site is None, below is None, not link_to].count(False) != 1:
        raise CommandError(
            "give the place of the broker: --site SITE for a relay, --below SITE for an edge, or"
            " --link-to BROKER in a mesh"
        )
    if relay and not link_to:
        raise CommandError("--relay requires --link-to; in a site, every broker is a relay")
    if link_to:
        _write(network_edit.add_linked(load(file), name, link_to, at, is_relay=relay))
    elif site is not None:
        _write(network_edit.add_relay(load(file), name, site, at))
    elif below is not None:
        _write(network_edit.add_edge(load(file), name, below, at))


@app.command("add-site")
def add_site(
    file: FilePath,
    name: Name,
    *,
    broker: Annotated[
        list[str], typer.Option("--broker", help="A broker of the site; repeatable.")
    ],
    join: Annotated[list[str], typer.Option("--join", help="A site to connect to; repeatable.")],
    host: Host = LOOPBACK,
) -> None:
    """Add a site to a network file.

    Writes the next revision of the file. New brokers get free ports on the same host; edit the file
    to change them.
    """
    _write(network_edit.add_site(load(file), name, broker, join, At(host=host)))


@app.command("remove-broker")
def remove_broker(file: FilePath, name: Name) -> None:
    """Remove a broker from a network file."""
    _write(network_edit.remove_broker(load(file), name))


@app.command("remove-site")
def remove_site(file: FilePath, name: Name) -> None:
    """Remove a site and its brokers from a network file."""
    _write(network_edit.remove_site(load(file), name))


@app.command("add-link")
def add_link(file: FilePath, one: Broker, other: Broker) -> None:
    """Add a link to the mesh of a network file."""
    _write(network_edit.add_link(load(file), one, other))


@app.command("remove-link")
def remove_link(file: FilePath, one: Broker, other: Broker) -> None:
    """Remove a link from the mesh of a network file.

    Refuses to remove a link whose loss would split the network.
    """
    _write(network_edit.remove_link(load(file), one, other))


def _write(file: NetworkFile) -> None:
    kept = network_edit.rewrite(file)
    typer.echo(
        f"wrote {file.path}, revision {file.revision}; the previous revision is {kept}", err=True
    )
    typer.echo(f"to change the running network: anabranch network apply {file.path}", err=True)


@app.command()
def apply(
    file: FilePath,
    *,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the running network.  [default: anabranch-NAME, beside the file]"
        ),
    ] = None,
    abandon: Annotated[
        bool,
        typer.Option("--abandon", help="Remove edges without draining; their events are lost."),
    ] = False,
    within: Annotated[
        float, typer.Option("--within", min=1.0, help="Time limit of each step in seconds.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per step.")] = False,
) -> None:
    """Apply a network file to the network that `anabranch up` runs, without stopping it.

    Edges that leave are drained first: their clients move to other edges, and all of their events
    are delivered. Then new brokers start, the others load the file, and removed brokers stop.
    """
    loaded = load(file)
    directory = state or home_of(loaded)
    request = control_channel.ChangeRequest(
        text=dump(loaded), path=str(file), abandon=abandon, within_s=within
    )
    for text in control_channel.send(directory, request):
        if as_json:
            print_json({"step": text})
        else:
            typer.echo(text)
