"""`anabranch network add-broker …, apply`: edit a network file and apply it to a running network.

The commands that add and remove write the next revision of a file and nothing else; `apply` changes
a network that runs on this machine to match the file. `config.network_edit` and `devnet.resize`
define the permitted changes.
"""

from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli.errors import CommandError
from anabranch.config import network_edit
from anabranch.config.addresses import LOOPBACK
from anabranch.config.network_edit import At
from anabranch.config.network_file import NetworkFile, dump, load
from anabranch.config.network_location import home_of
from anabranch.devnet import control_channel

FilePath = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Broker = Annotated[str, typer.Argument(metavar="BROKER", show_default=False)]
Host = Annotated[str, typer.Option("--host", help="Host that others connect to.")]
Port = typer.Option(min=0, max=65_535, help="Port; 0: chosen by `anabranch up`.")
PortNumber = Annotated[int, Port]
Listen = Annotated[str, typer.Option("--listen", help="Address to listen on. Default: the host.")]
State = Annotated[Path | None, typer.Option("--state", help="State directory.")]


def register(app: typer.Typer) -> None:
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


def remove_broker(file: FilePath, name: Name) -> None:
    """Remove a broker from a network file."""
    _write(network_edit.remove_broker(load(file), name))


def remove_site(file: FilePath, name: Name) -> None:
    """Remove a site and its brokers from a network file."""
    _write(network_edit.remove_site(load(file), name))


def add_link(file: FilePath, one: Broker, other: Broker) -> None:
    """Add a link to the mesh of a network file."""
    _write(network_edit.add_link(load(file), one, other))


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
        typer.echo(text)
