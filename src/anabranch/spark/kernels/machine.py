"""Compilation and caching of the pipeline kernels.

The machine code is cached next to that of the matching kernels, under a digest of all sources
involved: numba recompiles when any of them changes.
"""

from pathlib import Path

from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from anabranch.matching.kernels.machine import kept

#: Compiles a function that Python calls, and keeps it.
entry_point = kept("spark", Path(__file__).parent.glob("*.py"))


@intrinsic
def put_at(typingctx, array, index, value):
    """`array[index] = value` for a non-negative index, without numba's check for negative ones."""

    def generate(context, builder, signature, arguments):
        view = make_array(signature.args[0])(context, builder, arguments[0])
        made = context.cast(builder, arguments[2], signature.args[2], signature.args[0].dtype)
        builder.store(made, builder.gep(view.data, [arguments[1]], inbounds=True))
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate
