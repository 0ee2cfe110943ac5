"""How these kernels are compiled and kept, and the instructions that numba does not name.

They do without the interpreter while they run, so other threads go on. Their machine code is kept
beside that of the matching kernels, from which they take some, under a digest of all sources here:
a change of any file of the two makes numba compile anew.
"""

from pathlib import Path

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from anabranch.matching.kernels.cache import kept

#: Compiles a function that Python calls, and keeps it.
entry_point = kept("bulk", Path(__file__).parent.glob("*.py"))


@intrinsic
def copy(typingctx, source, first, target, place, count):
    """Copy so many bytes from one array to a place in another one, which both have."""

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
    """Write the eight bytes of a word to a place that has them, the lowest first."""

    def generate(context, builder, signature, arguments):
        taken = make_array(signature.args[0])(context, builder, arguments[0])
        there = builder.gep(taken.data, [arguments[1]])
        builder.store(arguments[2], builder.bitcast(there, ir.IntType(64).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(target, types.intp, types.int64), generate
