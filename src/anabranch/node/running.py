"""A process that is one broker: its event loop, its signals, its end.

    failure = run(config, ready)

1. SIGTERM and SIGINT end the broker in order (`Node.drain`). A second one ends the process at once,
   as kill −9 would, and loses nothing that was confirmed either.
2. uvloop runs the loop if it is installed.
3. The process may open as many files as its hard limit allows; where that is less than
   `connections_max` needs, connections are limited to what there is.
4. What is there after the start stays for ever, so the collector does not look at it again.

This module keeps no state.
"""

import asyncio
import gc
import importlib.util
import os
import resource
import signal
from collections.abc import Callable

import msgspec

from anabranch.node.node import Node
from anabranch.node.settings import NodeConfig

#: Files that are not connections: log segments, catalog, listeners, libraries.
_FILES_BESIDE = 128
_EXIT_AT_ONCE = 143
#: Objects that come to be before the collector looks at the young ones. Frames and events are no
#: garbage in cycles; the default of 700 would look thousands of times a second.
_YOUNG_MAX = 50_000

Ready = Callable[[Node], None]


def run(config: NodeConfig, ready: Ready) -> str:
    """Run a broker until it ends. Returns why, if it did not end in order."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(_within_files(config), ready))


async def _serve(config: NodeConfig, ready: Ready) -> str:
    node = Node(config)
    asked = _listen_for_signals()
    await node.start()
    ready(node)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX, 20, 20)
    ended = asyncio.ensure_future(node.stopped())
    wanted = asyncio.ensure_future(asked.wait())
    await asyncio.wait({ended, wanted}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        await node.drain()
    wanted.cancel()
    await ended
    return node.failure


def _listen_for_signals() -> asyncio.Event:
    """Set when a signal asks for the end; the next signal does not ask."""
    asked = asyncio.Event()

    def hear() -> None:
        if asked.is_set():
            os._exit(_EXIT_AT_ONCE)
        asked.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear)
    return asked


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
