"""Creation of Spark sessions with the settings that this project is tested with.

    spark = session()                                  # all cores of this machine
    spark = session("spark://host:7077", **{"spark.executor.memory": "4g"})

Defaults, unless the caller or a Spark configuration file overrides them:

1. Workers run this Python interpreter (`PYSPARK_PYTHON`); another one could not import the
   dependencies. On a cluster that has it at another path, set the variable beforehand.
2. A local master listens on loopback only and has no user interface.
3. Times are UTC.
4. Streaming queries keep their state in RocksDB, so that it is not bounded by the Java heap.
5. With a local master, shuffles have one partition per core: Spark's 200 would cost a small job
   seconds.
6. Spark may push filters down to data sources that support it; this one does with `pushdown`.

Spark has one session per process. An existing session is reused, with the caller's settings. A
setting that cannot change in a running session, or another master, is an error. This module keeps
no state.
"""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from anabranch.model.errors import LocalError
from anabranch.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
#: Environment variable with the master, if the caller does not pass one.
MASTER_VARIABLE = "ANABRANCH_SPARK_MASTER"
_STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session(
    master: str | None = None, *, name: str = "anabranch", **settings: str
) -> "SparkSession":
    """The existing Spark session, or a new one."""
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - it may not be installed
    except ImportError as error:
        raise LocalError("Spark is not installed: `pip install 'anabranch[spark]'`") from error
    current = SparkSession.getActiveSession()
    if current is not None:
        return _reused(current, master, settings)
    prepare_environment()
    address = _master(master)
    builder = SparkSession.builder.appName(name)
    if address.startswith("sc://"):
        builder, own = builder.remote(address), {}
    else:
        builder, own = builder.master(address), defaults(address)
    for key, value in {**own, **settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _reused(
    current: "SparkSession", master: str | None, settings: Mapping[str, str]
) -> "SparkSession":
    """The existing session, if it has the requested master and settings."""
    if master is not None and not _is_at(current, master):
        raise LocalError(
            f"a session at {_master_of(current)} is running, but {master} was requested; stop the"
            " running session first"
        )
    for key, value in settings.items():
        if current.conf.get(key, None) == value:
            continue
        if not current.conf.isModifiable(key):
            raise LocalError(f"cannot set {key}={value}: a session is already running")
        current.conf.set(key, value)
    return current


def _is_at(current: "SparkSession", master: str) -> bool:
    from pyspark.sql.utils import is_remote  # noqa: PLC0415 - see `session`

    # A Spark Connect session does not report its server's address, and its master is the server's.
    if is_remote() or master.startswith("sc://"):
        return is_remote() and master.startswith("sc://")
    return master == _master_of(current)


def _master_of(current: "SparkSession") -> str:
    from pyspark.sql.utils import is_remote  # noqa: PLC0415 - see `session`

    found: str = current.conf.get("spark.master", None) or "an unknown master"
    return "a Spark Connect server" if is_remote() else found


def _master(master: str | None) -> str:
    return master or os.environ.get(MASTER_VARIABLE, "") or DEFAULT_MASTER


def chosen(master: str | None = None) -> str:
    """Description of the runtime that a session with this master uses."""
    address = _master(master)
    if address.startswith("sc://"):
        return f"Spark Connect at {address}"
    return f"Spark at {address}, {find_java()}"


def prepare_environment() -> None:
    """Set environment variables for processes that Spark starts."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "JAVA_HOME" not in os.environ:
        os.environ["JAVA_HOME"] = str(find_java().home)


def defaults(master: str) -> dict[str, str]:
    found = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
        "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        cores = str(os.cpu_count() or 1)
        found |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": cores,
            "spark.default.parallelism": cores,
        }
    return found
