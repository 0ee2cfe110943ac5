"""The same code on clusters: executors in processes of their own, two workers, and Spark Connect.

These take minutes and gigabytes, so `scripts/test` leaves them out: they run where Hypothesis has
the profile of `scripts/soak`.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pyspark
import pytest

from tests.broker_parts import Brokers
from tests.spark.copying import Copy
from tests.spark.sql_statements import Script
from tests.spark_parts import ROOT, Driver, Findings, compared, events_of, publish_numbered

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("ANABRANCH_HYPOTHESIS_PROFILE") != "soak", reason="only in scripts/soak"
    ),
]

ROWS = 20_000
BOUND_S = 600.0
NETWORK = """
[network]
name = "cluster"
[tree]
a = ["b"]
[options]
keep_s = 86_400.0
"""
_HOME = Path(pyspark.__path__[0])


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with Brokers(tmp_path, NETWORK) as running:
        running.start("a", "b")
        publish_numbered(running.address("a"), "a", ROWS)
        yield running


def copy_on(master: str, brokers: Brokers, folder: Path) -> Findings:
    """Let a driver copy everything; what comes of it."""
    copy = Copy(
        brokers=brokers.address("a"),
        sources="a",
        target="b",
        sink="copy",
        checkpoint=str(folder / "checkpoint"),
        batch_ticks=5_000,
        partitions=4,
        master=master,
    )
    text = msgspec.json.encode(copy).decode()
    with Driver(folder / "driver.log", "tests.spark.copying", text) as driver:
        assert driver.wait(BOUND_S) == 0, driver.said()[-5_000:]
    return compared(events_of(brokers.address("b"), "b", "sink/copy"), {"a": ROWS})


EVERYTHING = Findings(rows=ROWS, missing=0, duplicate=0, reordered=0)


# -- daemons ---------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not is_so():
        assert time.monotonic() < deadline, f"not within {BOUND_S:.0f} s: {what}"
        time.sleep(0.1)


@contextmanager
def daemon(log: Path, program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Spark's, with all that it starts, until the end of the block."""
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, sys.path)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_LOG_DIR": str(log.parent),
    }
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(_HOME / "bin" / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=log.parent,
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(BOUND_S)


def has_registered(log: Path) -> bool:
    return "Successfully registered with master" in log.read_text()


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and two workers, on loopback."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    logs = [folder / f"{name}.log" for name in ("master", "worker-1", "worker-2")]
    place = ("--host", "127.0.0.1", "--webui-port", "0")
    deploy = "org.apache.spark.deploy"
    first = (f"{deploy}.master.Master", *place, "--port", str(port))
    size = ("--cores", "1", "--memory", "1g")
    works = [
        (f"{deploy}.worker.Worker", master, *place, *size, "--work-dir", str(folder / f"work-{n}"))
        for n in (1, 2)
    ]
    with daemon(logs[0], "spark-class", *first):
        wait_until(lambda: is_listening(port), "the master listens")
        with (
            daemon(logs[1], "spark-class", *works[0]),
            daemon(logs[2], "spark-class", *works[1]),
        ):
            for log in logs[1:]:
                wait_until(partial(has_registered, log), f"{log.stem} has registered")
            yield master


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A server for Spark Connect, on two cores."""
    port = free_port()
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
    }
    given = [word for name, text in settings.items() for word in ("--conf", f"{name}={text}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with daemon(
        folder / "server.log", "spark-submit", *given, "--class", server, "spark-internal"
    ) as process:
        wait_until(lambda: is_listening(port) or process.poll() is not None, "the server listens")
        assert process.poll() is None, (folder / "server.log").read_text()[-3_000:]
        yield f"sc://127.0.0.1:{port}"


# -- the tests -------------------------------------------------------------------------------------


def test_executors_in_processes_of_their_own_read_and_write(
    brokers: Brokers, tmp_path: Path
) -> None:
    assert copy_on("local-cluster[2,1,1024]", brokers, tmp_path) == EVERYTHING


def test_a_standalone_cluster_of_two_workers_reads_and_writes(
    brokers: Brokers, tmp_path: Path
) -> None:
    with standalone(tmp_path) as master:
        assert copy_on(master, brokers, tmp_path) == EVERYTHING


def test_a_client_of_spark_connect_reads_and_writes(brokers: Brokers, tmp_path: Path) -> None:
    with connect_server(tmp_path) as place:
        assert copy_on(place, brokers, tmp_path) == EVERYTHING


def test_a_client_of_spark_connect_uses_tables(brokers: Brokers, tmp_path: Path) -> None:
    options = f"OPTIONS (brokers '{brokers.address('a')}', streams 'a', filter 'n < 10')"
    select = "SELECT 'sql', n FROM again WHERE n > 7"
    statements = [
        f"CREATE TABLE numbers USING anabranch {options}",
        f"CREATE TEMPORARY VIEW again USING anabranch {options}",
        f"INSERT INTO numbers WITH (transactionId = 'sql') (source, n) {select}",
        "SELECT n FROM numbers WHERE source = 'sql' ORDER BY n",
    ]
    with connect_server(tmp_path) as place:
        text = msgspec.json.encode(Script(place, statements)).decode()
        with Driver(tmp_path / "driver.log", "tests.spark.sql_statements", text) as driver:
            assert driver.wait(BOUND_S) == 0, driver.said()[-5_000:]
            assert "rows [[8],[9]]" in driver.said()
    written = events_of(brokers.address("a"), "a", "sink/sql")
    assert [dict(event.attributes) for event in written] == [
        {"source": "sql", "n": n} for n in (8, 9)
    ]


def test_a_sweep_sends_its_own_package_to_executors(tmp_path: Path) -> None:
    # Only the driver can import it by itself.
    begin = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from evaluation.__main__ import app"
    words = ("sweep", str(tmp_path / "results"), "--shape", "pair", "--seeds", "0..1", "--json")
    done = subprocess.run(
        [sys.executable, "-c", f"{begin}; app()", *words, "--master", "local-cluster[1,1,1024]"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    told = msgspec.json.decode(done.stdout)
    assert (told["simulations"], told["failed"]) == (2, 0)
