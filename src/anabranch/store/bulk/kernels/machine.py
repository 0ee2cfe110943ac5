"""How the kernels of bulk reads are compiled and cached.

They do without the interpreter while they run, so other threads go on. Their machine code is kept
beside that of the matching kernels, from which they take some, under a digest of all sources here:
a change of any file of the two makes numba compile anew.
"""

from pathlib import Path

from anabranch.matching.kernels.cache import kept

#: Compiles a function that Python calls, and keeps it.
entry_point = kept("bulk", Path(__file__).parent.glob("*.py"))
