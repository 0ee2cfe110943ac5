"""Compilation and caching of the kernels of bulk reads.

The kernels run without the interpreter lock, so other threads continue. Their machine code is
cached beside that of the matching kernels, some of which they use, under a digest of all sources
here: a change of any file of either makes numba compile again.
"""

from pathlib import Path

from anabranch.matching.kernels.cache import kept

#: Compiles and caches a function that Python calls.
entry_point = kept("bulk", Path(__file__).parent.glob("*.py"))
