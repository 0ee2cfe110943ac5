"""A network on this machine becomes another one while it runs, without losing a promise.

    await change(network, load(path), tell=print)

Steps, each of which waits until it is done:

1. Edges that are not in the new network depart (`core.departure`) until they are drained: their
   clients have gone elsewhere, and everybody has all of their events.
2. The file in the directory becomes the new one.
3. New brokers start; all others are told to read the file again, and take the new network each by a
   short restart. When all of them have it, brokers that are not in it are stopped.

Rules:

1. The new file has a higher revision than the one that runs, and the same name.
2. An edge with durable subscriptions whose clients are not there is not made to depart: they would
   have nowhere to go. One that is not drained in time keeps departing and stays in the network,
   which is not changed. `abandon` leaves all of that out: what such edges have is given up. One
   that stays as a relay would want to depart first, so it is restarted.
3. Whatever fails after step 1 can be tried again with the same file.

State: the directory of the network.
"""

import asyncio
import signal
from collections.abc import Callable, Iterable

import msgspec

from anabranch.config.network_file import NetworkFile, dump, save
from anabranch.devnet.network import LocalNetwork, settled
from anabranch.model.errors import LocalError
from anabranch.node.status import Status

Tell = Callable[[str], None]
_LOOK_S = 0.1
#: Names that a message has at most.
_NAMED_MAX = 10
_decoder = msgspec.json.Decoder(Status)


def _nobody(_text: str) -> None:
    """Nobody wants to know."""


async def change(
    network: LocalNetwork,
    file: NetworkFile,
    *,
    tell: Tell = _nobody,
    abandon: bool = False,
    within_s: float = 60.0,
) -> None:
    """Make a running network another one; `LocalError` if that cannot be."""
    new = settled(file, network.directory)
    _check(network, file, new)
    departing = [edge for edge in network.edges if edge not in new.network.edges]
    if departing and not abandon:
        await _drain(network, departing, tell, within_s)
    running = network.supervisor.names
    staying = [broker for broker in running if broker in new.brokers]
    gone = [broker for broker in running if broker not in new.brokers]
    await _begin(network, new, tell)
    tell(f"revision {new.revision} goes to {', '.join(staying)}")
    if abandon:
        await _restart(network, [edge for edge in departing if edge in staying])
    await _reload(network, staying, within_s)
    if gone:
        tell(f"stopping {', '.join(gone)}")
        await network.supervisor.drop(gone)
    tell(f"all {len(new.brokers)} brokers have revision {new.revision}")


async def _begin(network: LocalNetwork, new: NetworkFile, tell: Tell) -> None:
    """Make it the file of the directory, and start the brokers that are new."""
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
        raise LocalError(f"{file.path} is of the network {file.name!r}; {now.name!r} runs here")
    if file.revision <= now.revision:
        raise LocalError(
            f"{file.path} has revision {file.revision}, and {now.revision} runs; give the new"
            " network a higher one"
        )


async def _status(network: LocalNetwork, broker: str) -> Status | None:
    data = await network.status(broker)
    return _decoder.decode(data) if data else None


# -- edges that leave -----------------------------------------------------------------------------


async def _drain(network: LocalNetwork, edges: list[str], tell: Tell, within_s: float) -> None:
    """Returns when these edges may go."""
    for edge in edges:
        await _check_clients(network, edge)
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_s
    told: dict[str, str] = {}
    while waiting := await _undrained(network, edges):
        for edge, why in waiting.items():
            if told.get(edge) != why:
                tell(f"{edge} departs: {why}")
        told = waiting
        if clock() >= deadline:
            raise LocalError(_not_in_time(waiting, within_s))
        await asyncio.sleep(_LOOK_S)


async def _check_clients(network: LocalNetwork, edge: str) -> None:
    status = await _status(network, edge)
    if status is None:
        raise LocalError(
            f"{edge} does not answer, so nobody knows what it has; wait until it runs, or give it"
            " up with --abandon"
        )
    if status.away and status.departure is None:
        raise LocalError(
            f"{edge} has durable subscriptions whose clients are not there:"
            f" {_listed(status.away_names, status.away)}; connect them, so that they can go"
            " elsewhere, or give them up with --abandon"
        )


async def _undrained(network: LocalNetwork, edges: Iterable[str]) -> dict[str, str]:
    """Edge → what it waits for."""
    found: dict[str, str] = {}
    for edge in edges:
        status = await _status(network, edge)
        if status is None:
            found[edge] = "it does not answer"
        elif status.departure is None:
            network.send(edge, signal.SIGUSR1)
            found[edge] = "it is told"
        elif not status.departure.is_drained:
            kept, needed = status.departure.kept, status.departure.needed_by
            found[edge] = (
                f"durable subscriptions have not gone elsewhere: {_listed(kept)}"
                if kept
                else f"not everything has arrived at {_listed(needed)}"
                if needed
                else "the disk is waited for"
            )
    return found


def _not_in_time(waiting: dict[str, str], within_s: float) -> str:
    what = "; ".join(f"{edge}: {why}" for edge, why in waiting.items())
    return (
        f"not drained within {within_s:.0f} s, so the network is not changed: {what}. Mend that and"
        " apply the file again, keep the edge with another file of a higher revision, or give up"
        " what it has with --abandon"
    )


def _listed(names: Iterable[str], count: int = 0) -> str:
    """The first of some names; there may be more of them than are named."""
    every = list(names)
    rest = max(len(every), count) - _NAMED_MAX
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(every[:_NAMED_MAX]) + more


# -- all others -----------------------------------------------------------------------------------


async def _restart(network: LocalNetwork, brokers: list[str]) -> None:
    """Let these brokers begin with the file of the directory."""
    if brokers:
        await network.kill(*brokers)
        await network.revive(*brokers)


async def _reload(network: LocalNetwork, brokers: list[str], within_s: float) -> None:
    """Returns when these brokers have the file of the directory."""
    revision = network.file.revision
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_s
    late = brokers
    for broker in brokers:
        network.send(broker, signal.SIGHUP)
    while late := [broker for broker in late if await _revision(network, broker) != revision]:
        if clock() >= deadline:
            raise LocalError(
                f"{_listed(late)} did not take revision {revision} within {within_s:.0f} s; see the"
                f" logs in {network.directory}, and apply the file again"
            )
        await asyncio.sleep(_LOOK_S)


async def _revision(network: LocalNetwork, broker: str) -> int:
    status = await _status(network, broker)
    return 0 if status is None or status.state != "ready" else status.revision
