"""The process of one broker: event loop, signals, shutdown.

    failure = run(config, ready, read)

1. SIGTERM and SIGINT shut the broker down in order (`Node.drain`). A second one ends the process at
   once, like kill −9; nothing that was confirmed is lost then either.
2. SIGHUP reloads the network file and applies a newer one (`reload`). If the broker cannot start
   with it, for example because a port is taken, it continues with the previous one. SIGUSR1 makes
   it depart (`core.client_services`): an edge does so before the others get a network without it.
3. uvloop runs the loop if it is installed.
4. If the core wants a restart, the next life begins from the same store, with the same
   configuration, and not sooner than `RESTART_S` after the previous one began.
5. The process raises its limit of open files up to the hard limit; if that is less than
   `connections_max` needs, the number of connections is reduced.
6. The garbage collector is kept from long pauses, and the C allocator from retaining large freed
   blocks (`memory_tuning`).

Stateless.
"""

import asyncio
import gc
import importlib.util
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from anabranch.config.network_file import NetworkFile
from anabranch.model.errors import LocalError
from anabranch.node.memory_tuning import Collector, return_large_blocks
from anabranch.node.node import RESTART_S, Node
from anabranch.node.reload import Step, next_step
from anabranch.node.settings import NodeConfig

#: Files other than connections: log segments, catalog, listeners, libraries.
_OTHER_FILES = 128
_EXIT_AT_ONCE = 143

Ready = Callable[[Node], None]
#: Reads the network file.
Read = Callable[[], NetworkFile]
Request = Literal["end", "change", "depart"]


def run(config: NodeConfig, ready: Ready, read: Read) -> str:
    """Run a broker until it ends; returns the reason unless it ended in order."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config, ready, read))


async def _serve(config: NodeConfig, ready: Ready, read: Read) -> str:
    return_large_blocks()
    requests = _listen_for_signals()
    collector = Collector()
    following: NodeConfig | None = config
    before: NodeConfig | None = None
    failure = ""
    restarts = 0
    while following is not None and not failure:
        began_at = time.monotonic()
        node = Node(_within_files(following), restarts=restarts)
        try:
            await node.start()
        except LocalError as error:
            if before is None:
                raise
            node.log.error("cannot start with revision %d: %s", following.revision, error)
            following, before = before, None
            continue
        before = following
        ready(node)
        # The previous life, if any, is garbage now.
        collector.start()
        warm = asyncio.ensure_future(_freeze_when_warm(node))
        following = await _live(node, requests, read)
        warm.cancel()
        failure = node.failure
        if following is None and node.wants_restart and not failure:
            pause_s = began_at + RESTART_S - time.monotonic()
            following = None if await _ends_within(pause_s, requests) else node.config
            restarts += 1
    collector.stop()
    return failure


async def _live(node: Node, requests: "asyncio.Queue[Request]", read: Read) -> NodeConfig | None:
    """Run one life; returns the configuration of the next one, if another was requested."""
    ended = asyncio.ensure_future(node.stopped())
    following: NodeConfig | None = None
    while not ended.done():
        request = asyncio.ensure_future(requests.get())
        await asyncio.wait({ended, request}, return_when=asyncio.FIRST_COMPLETED)
        if not request.done():
            request.cancel()
            break
        step = _step(node, request.result(), read)
        if step == "end":
            node.wants_restart = False
        if step == "depart" and ended.done():
            # It is for the next life.
            requests.put_nowait("depart")
        elif step == "depart":
            node.depart()
        elif step != "nothing":
            following = None if isinstance(step, str) else step
            await node.drain()
    await ended
    return following


async def _ends_within(pause_s: float, requests: "asyncio.Queue[Request]") -> bool:
    """Wait; return whether the process is to end meanwhile. Other requests remain."""
    others: list[Request] = []
    try:
        async with asyncio.timeout(pause_s):
            while (request := await requests.get()) != "end":
                others.append(request)
            return True
    except TimeoutError:
        for request in others:
            requests.put_nowait(request)
        return False


def _step(node: Node, request: Request, read: Read) -> NodeConfig | Step:
    if request != "change":
        return request
    try:
        return next_step(node, read())
    except LocalError as error:
        node.log.error("ignoring the network file: %s", error)
        return "nothing"


async def _freeze_when_warm(node: Node) -> None:
    await node.warm_up.over.wait()
    gc.freeze()


def _listen_for_signals() -> "asyncio.Queue[Request]":
    """The requests that signals make. The second request to end exits at once."""
    requests: asyncio.Queue[Request] = asyncio.Queue()
    ending = asyncio.Event()

    def end() -> None:
        if ending.is_set():
            os._exit(_EXIT_AT_ONCE)
        ending.set()
        requests.put_nowait("end")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, requests.put_nowait, "change")
    loop.add_signal_handler(signal.SIGUSR1, requests.put_nowait, "depart")
    return requests


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = __import__("uvloop").new_event_loop
    return factory


def _within_files(config: NodeConfig) -> NodeConfig:
    """The configuration with `connections_max` reduced to the limit of open files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.limits.connections_max + _OTHER_FILES
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return config
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, soft), hard))
    connections_max = max(max(files, soft) - _OTHER_FILES, 1)
    if connections_max >= config.limits.connections_max:
        return config
    limits = msgspec.structs.replace(config.limits, connections_max=connections_max)
    return msgspec.structs.replace(config, limits=limits)
