"""One way to get a Spark session, with settings under which this project is tested.

    spark = session()                                  # all cores of this machine
    spark = session("spark://host:7077", **{"spark.executor.memory": "4g"})

What is set unless the caller, or a Spark configuration file, says otherwise:

1. Workers run this Python (`PYSPARK_PYTHON`); any other could not import what is needed. On a
   cluster whose machines have it elsewhere, set the variable before.
2. A local master listens on loopback only, and has no user interface.
3. Times are UTC.
4. State of streaming queries is in RocksDB, so that its size is not bounded by Java's heap.
5. Shuffles have as many partitions as the machine has cores, where the master is local: 200 of
   them would cost a small job seconds.
6. Conditions may be handed to data sources that ask for them; this one does with `pushdown`.

Spark has one session per process. If there is one, it is given back, with the caller's settings; a
setting that a running session cannot take, or another master, is an error. This module keeps no
state.
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
#: Names the master where the caller does not.
MASTER_VARIABLE = "ANABRANCH_SPARK_MASTER"
_STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session(
    master: str | None = None, *, name: str = "anabranch", **settings: str
) -> "SparkSession":
    """A Spark session: the one there is, or a new one."""
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - it may not be installed
    except ImportError as error:
        raise LocalError("Spark is not installed: `pip install 'anabranch[spark]'`") from error
    current = SparkSession.getActiveSession()
    if current is not None:
        return _again(current, master, settings)
    prepare_environment()
    place = _place(master)
    builder = SparkSession.builder.appName(name)
    if place.startswith("sc://"):
        builder, own = builder.remote(place), {}
    else:
        builder, own = builder.master(place), defaults(place)
    for key, value in {**own, **settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _again(
    current: "SparkSession", master: str | None, settings: Mapping[str, str]
) -> "SparkSession":
    """The session that there is, if it is what is wanted."""
    if master is not None and not _is_at(current, master):
        raise LocalError(
            f"there is a session at {_master_of(current)}, and {master} is asked for; stop that one"
            " before"
        )
    for key, value in settings.items():
        if current.conf.get(key, None) == value:
            continue
        if not current.conf.isModifiable(key):
            raise LocalError(f"there is a session, which cannot take {key}={value} any more")
        current.conf.set(key, value)
    return current


def _is_at(current: "SparkSession", master: str) -> bool:
    from pyspark.sql.utils import is_remote  # noqa: PLC0415 - see `session`

    # A session of Spark Connect does not tell where its server is; the server's master is not ours.
    if is_remote() or master.startswith("sc://"):
        return is_remote() and master.startswith("sc://")
    return master == _master_of(current)


def _master_of(current: "SparkSession") -> str:
    from pyspark.sql.utils import is_remote  # noqa: PLC0415 - see `session`

    found: str = current.conf.get("spark.master", None) or "somewhere else"
    return "a server of Spark Connect" if is_remote() else found


def _place(master: str | None) -> str:
    return master or os.environ.get(MASTER_VARIABLE, "") or DEFAULT_MASTER


def chosen(master: str | None = None) -> str:
    """What a session with this master runs on, in words."""
    place = _place(master)
    if place.startswith("sc://"):
        return f"Spark Connect at {place}"
    return f"Spark at {place}, {find_java()}"


def prepare_environment() -> None:
    """What processes that Spark starts will find in their environment."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "JAVA_HOME" not in os.environ:
        os.environ["JAVA_HOME"] = str(find_java().home)


def defaults(master: str) -> dict[str, str]:
    """The settings for a master."""
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
