"""Change a network on this machine while it runs, and keep all guarantees.

    await change(network, load(path), tell=print)

Steps, each of which waits until it is complete

1. Edges that are not in the new network depart (`core.client_services`) until they are drained:
   their clients have moved to other edges, and all of their events are delivered.
2. The new file replaces the one in the directory.
3. New brokers start. All others are signalled to reload the file and adopt the new network with a
   short restart. When all have done so, brokers that are not in the new network are stopped.

Rules

1. The new file has the same name as the running network and a higher revision.
2. An edge with durable subscriptions of disconnected clients is not drained: the clients could not
   move. An edge that is not drained in time keeps departing and stays in the network, which is not
   changed. `abandon` skips draining: events that only these edges have are lost. An edge that
   becomes a relay would have to depart first, so it is restarted.
3. A failure after step 1 can be retried with the same file.

State: the directory of the network.
"""

import asyncio
import signal
from collections.abc import Callable, Iterable

import msgspec

from anabranch.config.network_file import NetworkFile, dump, save
from anabranch.devnet.network import LocalNetwork, settled
from anabranch.devnet.observe import STARTED
from anabranch.model.errors import LocalError
from anabranch.node.status import Status

Tell = Callable[[str], None]
_POLL_S = 0.1
#: Maximum number of names in a message.
_NAMED_MAX = 10
_decoder = msgspec.json.Decoder(Status)


def _ignore(_text: str) -> None:
    pass


async def change(
    network: LocalNetwork,
    file: NetworkFile,
    *,
    tell: Tell = _ignore,
    abandon: bool = False,
    within_s: float = 60.0,
) -> None:
    """Change a running network to match a file; raises `LocalError` if that is not possible."""
    new = settled(file, network.directory)
    _check(network, file, new)
    departing = [edge for edge in network.edges if edge not in new.network.edges]
    if departing and not abandon:
        await _drain(network, departing, tell, within_s)
    running = network.supervisor.names
    staying = [broker for broker in running if broker in new.brokers]
    gone = [broker for broker in running if broker not in new.brokers]
    await _begin(network, new, tell)
    tell(f"sending revision {new.revision} to {', '.join(staying)}")
    if abandon:
        await _restart(network, [edge for edge in departing if edge in staying])
    await _reload(network, staying, within_s)
    if gone:
        tell(f"stopping {', '.join(gone)}")
        await network.supervisor.drop(gone)
    tell(f"all {len(new.brokers)} brokers have revision {new.revision}")


async def _begin(network: LocalNetwork, new: NetworkFile, tell: Tell) -> None:
    """Replace the file in the directory and start new brokers."""
    before = network.file
    joining = [broker for broker in new.brokers if broker not in network.supervisor.names]
    if joining:
        tell(f"starting {', '.join(joining)}")
    save(network.path, dump(new))
    network.file = new
    try:
        await network.supervisor.take(network.programs(new))
    except LocalError:
        save(network.path, dump(before))
        network.file = before
        raise


def _check(network: LocalNetwork, file: NetworkFile, new: NetworkFile) -> None:
    now = network.file
    if new == now:
        return
    if file.name != now.name:
        raise LocalError(
            f"{file.path} describes network {file.name!r}, but network {now.name!r} runs here"
        )
    if file.revision <= now.revision:
        raise LocalError(
            f"{file.path} has revision {file.revision}, but revision {now.revision} is running;"
            " give the new file a higher revision"
        )


async def _status(network: LocalNetwork, broker: str) -> Status | None:
    data = await network.status(broker)
    return _decoder.decode(data) if data else None


# -- edges that leave -----------------------------------------------------------------------------


async def _drain(network: LocalNetwork, edges: list[str], tell: Tell, within_s: float) -> None:
    """Wait until these edges are drained."""
    for edge in edges:
        await _check_clients(network, edge)
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_s
    reported: dict[str, str] = {}
    while waiting := await _undrained(network, edges):
        for edge, why in waiting.items():
            if reported.get(edge) != why:
                tell(f"draining {edge}: {why}")
        reported = waiting
        if clock() >= deadline:
            raise LocalError(_not_in_time(waiting, within_s))
        await asyncio.sleep(_POLL_S)


async def _check_clients(network: LocalNetwork, edge: str) -> None:
    status = await _status(network, edge)
    if status is None:
        raise LocalError(
            f"{edge} does not answer, so its events cannot be drained; wait until it runs, or use"
            " --abandon and lose them"
        )
    if status.away and status.departure is None:
        raise LocalError(
            f"{edge} has durable subscriptions of disconnected clients:"
            f" {_listed(status.away_names, status.away)}; connect the clients, so that they can"
            " move to another edge, or use --abandon and lose the subscriptions"
        )


async def _undrained(network: LocalNetwork, edges: Iterable[str]) -> dict[str, str]:
    """Edge → what it is waiting for."""
    found: dict[str, str] = {}
    for edge in edges:
        status = await _status(network, edge)
        if status is None:
            found[edge] = "it does not answer"
        elif status.departure is None:
            network.send(edge, signal.SIGUSR1)
            found[edge] = "signalled"
        elif not status.departure.is_drained:
            kept, needed = status.departure.kept, status.departure.needed_by
            found[edge] = (
                f"durable subscriptions have not moved: {_listed(kept)}"
                if kept
                else f"events not yet delivered to {_listed(needed)}"
                if needed
                else "waiting for the disk"
            )
    return found


def _not_in_time(waiting: dict[str, str], within_s: float) -> str:
    what = "; ".join(f"{edge}: {why}" for edge, why in waiting.items())
    return (
        f"not drained within {within_s:.0f} s; the network is unchanged: {what}. Fix this and"
        " apply the file again, keep the edge with another file of a higher revision, or use"
        " --abandon and lose its events"
    )


def _listed(names: Iterable[str], count: int = 0) -> str:
    """The first names, and the number of the others."""
    listed = list(names)
    rest = max(len(listed), count) - _NAMED_MAX
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(listed[:_NAMED_MAX]) + more


# -- all others -----------------------------------------------------------------------------------


async def _restart(network: LocalNetwork, brokers: list[str]) -> None:
    """Restart brokers with the file in the directory."""
    if brokers:
        await network.kill(*brokers)
        await network.revive(*brokers)


async def _reload(network: LocalNetwork, brokers: list[str], within_s: float) -> None:
    """Make brokers reload the file in the directory; returns when all have its revision."""
    revision = network.file.revision
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_s
    late = brokers
    for broker in brokers:
        network.send(broker, signal.SIGHUP)
    while late := [broker for broker in late if await _revision(network, broker) != revision]:
        if clock() >= deadline:
            raise LocalError(
                f"{_listed(late)} did not load revision {revision} within {within_s:.0f} s; see the"
                f" logs in {network.directory}, and apply the file again"
            )
        await asyncio.sleep(_POLL_S)


async def _revision(network: LocalNetwork, broker: str) -> int:
    status = await _status(network, broker)
    return 0 if status is None or status.state not in STARTED else status.revision
