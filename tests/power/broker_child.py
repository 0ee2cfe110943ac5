"""What is recorded: a broker process with small segments, windows and intervals.

    python -m tests.power.broker_child STATE [DENY]

It prints `ready` and where clients reach it, and ends in order at SIGTERM. With DENY, every so many
new segments find no room at first, as on a disk that is nearly full.
"""

import sqlite3
import sys
from itertools import count
from pathlib import Path

from anabranch.config.network_file import NetworkFile
from anabranch.core.options import Options
from anabranch.model.errors import LocalError
from anabranch.model.network import Network
from anabranch.node.node import Node
from anabranch.node.process import run
from anabranch.node.settings import Address, NodeConfig
from anabranch.store.files import DiskFile
from anabranch.store.log import LogOptions
from anabranch.store.store import StoreOptions, WriterOptions

NAME = "a"
NETWORK_NAME = "shop"
NETWORK = Network({NAME: [NAME]})
#: So often the catalog moves what is in its journal into its file; by itself it has a thousand.
JOURNAL_PAGES = 40
STORE = StoreOptions(
    log=LogOptions(segment_bytes=4_000, reserve_bytes=6_144, blank_bytes=2_048, stride_bytes=600),
    writer=WriterOptions(window_records=16, retry_s=0.01),
)
OPTIONS = Options(
    checkpoint_ticks=25,
    done_every_s=0.03,
    mark_after_s=0.005,
    slice_events_max=4,
    pattern_save_s=0.1,
    head_every_s=0.2,
)


def config(state: Path) -> NodeConfig:
    return NodeConfig(
        name=NAME,
        network_name=NETWORK_NAME,
        network=NETWORK,
        state=state,
        clients=Address("127.0.0.1", 0),
        store=STORE,
        options=OPTIONS,
    )


def deny_every(number: int) -> None:
    """Let every so many new segments find no room."""
    reserve, turns = DiskFile.reserve, count(1)

    def sometimes(self: DiskFile, start: int, end: int) -> bool:
        return (start > 0 or next(turns) % number != 0) and reserve(self, start, end)

    DiskFile.reserve = sometimes  # type: ignore[method-assign]


def checkpoint_often() -> None:
    """Let every catalog empty its journal after a few commits."""
    connect = sqlite3.connect

    def soon(*where: object, **how: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*where, **how)  # type: ignore[call-overload]
        connection.execute(f"PRAGMA wal_autocheckpoint = {JOURNAL_PAGES}")
        return connection

    sqlite3.connect = soon  # type: ignore[assignment]


def ready(node: Node) -> None:
    sys.stdout.write(f"ready {node.addresses.clients}\n")
    sys.stdout.flush()


def read() -> NetworkFile:
    raise LocalError("this broker has no network file")


if __name__ == "__main__":
    checkpoint_often()
    if len(sys.argv) > 2:
        deny_every(int(sys.argv[2]))
    sys.exit(run(config(Path(sys.argv[1])), ready, read) or 0)
