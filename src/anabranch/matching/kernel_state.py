"""Whether this process uses the compiled kernels yet.

Compiling the kernels takes a minute, once on a machine; loading them from the cache takes a second,
once per process. A program that can wait uses them at once, and the first index it creates waits. A
broker cannot wait: it *defers* the kernels and loads them in a thread.

Rules

1. While the kernels are deferred, a new index or DAG that may choose its engine starts without
   them. It keeps what it needs to move to them later.
2. When they are loaded, each index and each DAG moves with its next operation, in its own thread,
   under its own lock. Its answers stay the same, up to their order.
3. A move takes as long as adding everything again. The caller that defers the kernels therefore
   limits what is added until then (`node.kernel_warmup`).

State: whether the kernels are deferred, and whether they are loaded, for the whole process, because
numba keeps one copy of a kernel per process.
"""

import threading

_lock = threading.Lock()
_deferrals: set["Deferral"] = set()
#: Set when every kernel that a broker needs has run in this process.
loaded = threading.Event()


class Deferral:
    """Keeps new indexes from the kernels until they are loaded, or until `end`."""

    def __init__(self) -> None:
        with _lock:
            _deferrals.add(self)

    def end(self) -> None:
        """Let indexes use the kernels, and wait for them, unless somebody else defers them."""
        with _lock:
            _deferrals.discard(self)


def are_deferred() -> bool:
    """Whether an index has to do without the kernels for now."""
    return bool(_deferrals) and not loaded.is_set()
