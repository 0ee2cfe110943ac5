"""Compilation and caching of these kernels, and instructions that numba lacks.

The kernels run without the interpreter lock, so other threads continue. Their machine code is
cached beside that of the matching kernels, some of which they use, under a digest of all sources
here: a change of any file of either makes numba compile again.
"""

from pathlib import Path

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from anabranch.matching.kernels.cache import kept

#: Compiles and caches a function that Python calls.
entry_point = kept("bulk", Path(__file__).parent.glob("*.py"))


@intrinsic
def copy(typingctx, source, first, target, place, count):
    """Copy `count` bytes from one array to a position in another one; both ranges must exist."""

    def generate(context, builder, signature, arguments):
        given = make_array(signature.args[0])(context, builder, arguments[0])
        taken = make_array(signature.args[2])(context, builder, arguments[2])
        here = builder.gep(given.data, [arguments[1]])
        there = builder.gep(taken.data, [arguments[3]])
        cgutils.raw_memcpy(builder, there, here, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp, types.intp), generate


@intrinsic
def put(typingctx, target, place, word):
    """Write the eight bytes of a word to an existing position, little-endian."""

    def generate(context, builder, signature, arguments):
        taken = make_array(signature.args[0])(context, builder, arguments[0])
        there = builder.gep(taken.data, [arguments[1]])
        builder.store(arguments[2], builder.bitcast(there, ir.IntType(64).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(target, types.intp, types.int64), generate
