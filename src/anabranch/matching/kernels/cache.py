"""Where compiled kernels are kept between runs.

numba keeps the machine code of a cached function beside its source and compiles again when that one
file changes. An entry point, however, contains kernels of many files, and would stay as it was when
one of those changes. So the cache has a directory whose name is a digest of all kernel sources: a
change anywhere starts a new one.

1. If NUMBA_CACHE_DIR is set, the directory is made there.
2. Else in the `__pycache__` of this package, where earlier digests are cleared away.
3. Else, if that cannot be written, in the user's cache directory.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import numba
from numba import njit

_HERE = Path(__file__).parent


def digest() -> str:
    """A short name for the present state of all kernel sources."""
    return _digest(_HERE.glob("*.py"))


def _digest(sources: Iterable[Path]) -> str:
    state = hashlib.sha256()
    for source in sorted(sources):
        state.update(source.name.encode())
        state.update(source.read_bytes())
    return state.hexdigest()[:16]


def kept(prefix: str, sources: Iterable[Path]):
    """Compiles functions of another package that Python calls and that do without Python, and keeps
    them: under a digest of these sources, within the directory of the kernels they are made of."""
    own = _made(cache_directory() / f"{prefix}-{_digest(sources)}")

    def entry_point(function):
        # numba asks for its cache directory at this moment only.
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(own)
        try:
            return njit(cache=True, nogil=True)(function)
        finally:
            numba.config.CACHE_DIR = before

    return entry_point


def cache_directory() -> Path:
    """The directory for the machine code of these kernels; it exists when this returns."""
    name = f"kernels-{digest()}"
    if numba.config.CACHE_DIR:  # type: ignore[attr-defined]
        return _made(Path(numba.config.CACHE_DIR) / name)  # type: ignore[attr-defined]
    beside = _HERE / "__pycache__"
    try:
        _made(beside / name)
    except OSError:
        caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return _made(Path(caches) / "anabranch" / name)
    for earlier in beside.glob("kernels-*"):
        if earlier.name != name:
            shutil.rmtree(earlier, ignore_errors=True)
    return beside / name


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK):
        raise PermissionError(f"{directory} cannot be written")
    return directory
