"""The write stream of a process: every call that changed a file or waited for the disk, in order.

`recorder.c` writes it; this module builds the recorder with the C compiler of the machine and reads
what it wrote. It needs Linux, glibc and a C compiler. Where one is missing `why_not` says which,
and the tests are skipped. Device mapper's log-writes target records the same below the file system;
it needs root and a kernel that has it, which few machines for tests do. The recorder cannot see
what a file system does by itself, so `lossy_disk` models a pessimistic one.

This module keeps no state.
"""

import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

_SOURCE = Path(__file__).with_name("recorder.c")
_head = struct.Struct("=cQQQII")


class Call(msgspec.Struct, frozen=True):
    """One record; see the top of `recorder.c`."""

    kind: str
    inode: int = 0
    one: int = 0
    two: int = 0
    text: str = ""
    data: bytes = b""


def why_not() -> str:
    """Why nothing can be recorded on this machine; "" if it can."""
    if sys.platform != "linux":
        return f"the recorder needs Linux, and this is {sys.platform}"
    if platform.libc_ver()[0] != "glibc":
        return "the recorder needs the C library of GNU, and Python uses another one"
    if _compiler() is None:
        return "the recorder needs a C compiler (cc or gcc), and there is none"
    return ""


def build(folder: Path) -> Path:
    """Compile the recorder into this folder."""
    compiler = _compiler()
    assert compiler is not None, why_not()
    library = folder / "recorder.so"
    options = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(_SOURCE)]
    subprocess.run([compiler, *options, "-ldl", "-lpthread"], check=True, timeout=120)
    return library


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def recording(library: Path, root: Path, trace: Path) -> Mapping[str, str]:
    """The environment in which a process is recorded."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "LD_PRELOAD": str(library),
        "ANABRANCH_POWER_ROOT": str(root),
        "ANABRANCH_POWER_TRACE": str(trace),
    }


def calls_of(trace: Path) -> list[Call]:
    """What was recorded; a record at the end that was cut off by a kill is left out."""
    found = [*_calls(trace.read_bytes())]
    unknown = {call.text for call in found if call.kind == "X"}
    assert not unknown, f"the recorder does not understand {sorted(unknown)}"
    assert sum(call.kind == "P" for call in found) == 1, "more than one process was recorded"
    return found


def _calls(data: bytes) -> Iterator[Call]:
    offset = 0
    while offset + _head.size <= len(data):
        kind, inode, one, two, text_bytes, data_bytes = _head.unpack_from(data, offset)
        text_at = offset + _head.size
        data_at = text_at + text_bytes
        offset = data_at + data_bytes
        if offset > len(data):
            return
        text = os.fsdecode(data[text_at:data_at])
        yield Call(kind.decode(), inode, one, two, text, data[data_at:offset])
