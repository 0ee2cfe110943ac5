"""`anabranch network add-broker …, apply`: a network file's next revision, and its way to brokers.

The commands that add and remove write the next revision of a file and nothing else; `apply` makes a
network that runs on this machine the one of the file. What they may do is decided in
`config.network_edit` and `devnet.resize`.
"""

from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli.errors import CommandError
from anabranch.config import network_edit
from anabranch.config.addresses import LOOPBACK
from anabranch.config.network_edit import At
from anabranch.config.network_file import NetworkFile, dump, load
from anabranch.devnet import control_channel
from anabranch.devnet.directory import home_of

FilePath = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Broker = Annotated[str, typer.Argument(metavar="BROKER", show_default=False)]
Host = Annotated[str, typer.Option("--host", help="What others dial.")]
Port = typer.Option(min=0, max=65_535, help="A port; 0: chosen by `anabranch up`.")
PortNumber = Annotated[int, Port]
Listen = Annotated[str, typer.Option("--listen", help="Where it listens, if not at its host.")]
State = Annotated[Path | None, typer.Option("--state", help="Its state directory.")]


def register(app: typer.Typer) -> None:
    """Put these commands into a group."""
    app.command("add-broker")(add_broker)
    app.command("add-site")(add_site)
    app.command("remove-broker")(remove_broker)
    app.command("remove-site")(remove_site)
    app.command("add-link")(add_link)
    app.command("remove-link")(remove_link)
    app.command("apply")(apply)


def add_broker(
    file: FilePath,
    name: Name,
    *,
    site: Annotated[
        str | None, typer.Option("--site", help="A relay: another broker of this site.")
    ] = None,
    below: Annotated[
        str | None,
        typer.Option("--below", help="An edge: below this site, or this broker of a tree."),
    ] = None,
    link_to: Annotated[
        list[str] | None,
        typer.Option("--link-to", help="In a mesh: a broker that it has a link to; repeat it."),
    ] = None,
    relay: Annotated[bool, typer.Option("--relay", help="In a mesh: without clients.")] = False,
    host: Host = LOOPBACK,
    clients: PortNumber = 0,
    links: PortNumber = 0,
    observe: PortNumber = 0,
    listen: Listen = "",
    state: State = None,
) -> None:
    """Write the next revision of a network file, with another broker.

    Comments and layout of the file are kept; the previous revision stays beside it.
    """
    at = At(host=host, clients=clients, links=links, observe=observe, listen=listen, state=state)
    if [site is None, below is None, not link_to].count(False) != 1:
        raise CommandError(
            "say where it is: --site SITE for a relay, --below SITE for an edge, or in a mesh"
            " --link-to BROKER"
        )
    if relay and not link_to:
        raise CommandError("--relay goes with --link-to; in a site, every broker is a relay")
    if link_to:
        _write(network_edit.add_linked(load(file), name, link_to, at, is_relay=relay))
    elif site is not None:
        _write(network_edit.add_relay(load(file), name, site, at))
    elif below is not None:
        _write(network_edit.add_edge(load(file), name, below, at))


def add_site(
    file: FilePath,
    name: Name,
    *,
    broker: Annotated[list[str], typer.Option("--broker", help="A broker of it; repeat it.")],
    join: Annotated[list[str], typer.Option("--join", help="A site to join it to; repeat it.")],
    host: Host = LOOPBACK,
) -> None:
    """Write the next revision of a network file, with another site.

    Brokers that are new get free ports, all on the same host; change them in the file if need be.
    """
    _write(network_edit.add_site(load(file), name, broker, join, At(host=host)))


def remove_broker(file: FilePath, name: Name) -> None:
    """Write the next revision of a network file, without a broker."""
    _write(network_edit.remove_broker(load(file), name))


def remove_site(file: FilePath, name: Name) -> None:
    """Write the next revision of a network file, without a site and its brokers."""
    _write(network_edit.remove_site(load(file), name))


def add_link(file: FilePath, one: Broker, other: Broker) -> None:
    """Write the next revision of a network file, with another link of its mesh."""
    _write(network_edit.add_link(load(file), one, other))


def remove_link(file: FilePath, one: Broker, other: Broker) -> None:
    """Write the next revision of a network file, without a link of its mesh.

    A link without which the network would be cut in two is not removed.
    """
    _write(network_edit.remove_link(load(file), one, other))


def _write(file: NetworkFile) -> None:
    kept = network_edit.rewrite(file)
    typer.echo(f"wrote {file.path}, revision {file.revision}; the one before is {kept}", err=True)
    typer.echo(f"when its network is to become this: anabranch network apply {file.path}", err=True)


def apply(
    file: FilePath,
    *,
    state: Annotated[
        Path | None,
        typer.Option(
            help="The directory of the running network.  [default: anabranch-NAME, beside the file]"
        ),
    ] = None,
    abandon: Annotated[
        bool,
        typer.Option("--abandon", help="Remove edges at once; what only they have is lost."),
    ] = False,
    within: Annotated[
        float, typer.Option("--within", min=1.0, help="Seconds that each step may take.")
    ] = 60.0,
) -> None:
    """Make a network that `anabranch up` runs the one of this file, without stopping it.

    Edges that leave are drained first: their clients go elsewhere, and everybody gets all of their
    events. Then new brokers start, the others take the file, and those that are gone are stopped.
    """
    loaded = load(file)
    directory = state or home_of(loaded)
    request = control_channel.ChangeRequest(
        text=dump(loaded), path=str(file), abandon=abandon, within_s=within
    )
    for text in control_channel.send(directory, request):
        typer.echo(text)
