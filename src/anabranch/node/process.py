"""A process that is one broker: its event loop, its signals, its end.

    failure = run(config, ready, read)

1. SIGTERM and SIGINT end the broker in order (`Node.drain`). A second one ends the process at once,
   as kill −9 would, and loses nothing that was confirmed either.
2. SIGHUP makes it read its network file again and take a newer one (`changing`). If it cannot begin
   with that, because a port is taken say, it goes on with the one it had. SIGUSR1 makes it
   depart (`core.departure`): an edge does so before the others get a network without it.
3. uvloop runs the loop if it is installed.
4. The process may open as many files as its hard limit allows; where that is less than
   `connections_max` needs, connections are limited to what there is.
5. The garbage collector is kept from making long pauses (`collecting`), and the C allocator from
   keeping large blocks that were freed (`allocator`).

This module keeps no state.
"""

import asyncio
import gc
import importlib.util
import os
import resource
import signal
from collections.abc import Callable
from typing import Literal

import msgspec

from anabranch.config.network_file import NetworkFile
from anabranch.model.errors import LocalError
from anabranch.node.memory_tuning import Collector, return_large_blocks
from anabranch.node.node import Node
from anabranch.node.reload import Step, next_step
from anabranch.node.settings import NodeConfig

#: Files that are not connections: log segments, catalog, listeners, libraries.
_FILES_BESIDE = 128
_EXIT_AT_ONCE = 143

Ready = Callable[[Node], None]
#: Reads the network file.
Read = Callable[[], NetworkFile]
Wish = Literal["end", "change", "depart"]


def run(config: NodeConfig, ready: Ready, read: Read) -> str:
    """Run a broker until it ends. Returns why, if it did not end in order."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config, ready, read))


async def _serve(config: NodeConfig, ready: Ready, read: Read) -> str:
    return_large_blocks()
    wishes = _listen_for_signals()
    collector = Collector()
    following: NodeConfig | None = config
    before: NodeConfig | None = None
    failure = ""
    while following is not None and not failure:
        node = Node(_within_files(following))
        try:
            await node.start()
        except LocalError as error:
            if before is None:
                raise
            node.log.error("revision %d cannot be used: %s", following.revision, error)
            following, before = before, None
            continue
        before = following
        ready(node)
        # The life before, if there was one, is garbage now.
        collector.start()
        warm = asyncio.ensure_future(_freeze_when_warm(node))
        following = await _live(node, wishes, read)
        warm.cancel()
        failure = node.failure
    collector.stop()
    return failure


async def _live(node: Node, wishes: "asyncio.Queue[Wish]", read: Read) -> NodeConfig | None:
    """Until the end of a life; what the next one begins with, if there is to be one."""
    ended = asyncio.ensure_future(node.stopped())
    following: NodeConfig | None = None
    while not ended.done():
        wish = asyncio.ensure_future(wishes.get())
        await asyncio.wait({ended, wish}, return_when=asyncio.FIRST_COMPLETED)
        if not wish.done():
            wish.cancel()
            break
        step = _step(node, wish.result(), read)
        if step == "depart":
            node.depart()
        elif step != "nothing":
            following = None if isinstance(step, str) else step
            await node.drain()
    await ended
    return following


def _step(node: Node, wish: Wish, read: Read) -> NodeConfig | Step:
    if wish != "change":
        return wish
    try:
        return next_step(node, read())
    except LocalError as error:
        node.log.error("the network file is not taken: %s", error)
        return "nothing"


async def _freeze_when_warm(node: Node) -> None:
    await node.warm_up.over.wait()
    gc.freeze()


def _listen_for_signals() -> "asyncio.Queue[Wish]":
    """What signals ask for. After one that asks for the end, the next one does not ask."""
    wishes: asyncio.Queue[Wish] = asyncio.Queue()
    ending = asyncio.Event()

    def end() -> None:
        if ending.is_set():
            os._exit(_EXIT_AT_ONCE)
        ending.set()
        wishes.put_nowait("end")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, wishes.put_nowait, "change")
    loop.add_signal_handler(signal.SIGUSR1, wishes.put_nowait, "depart")
    return wishes


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = __import__("uvloop").new_event_loop
    return factory


def _within_files(config: NodeConfig) -> NodeConfig:
    """The same, with no more connections than there may be files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.limits.connections_max + _FILES_BESIDE
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return config
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, soft), hard))
    connections_max = max(max(files, soft) - _FILES_BESIDE, 1)
    if connections_max >= config.limits.connections_max:
        return config
    limits = msgspec.structs.replace(config.limits, connections_max=connections_max)
    return msgspec.structs.replace(config, limits=limits)
