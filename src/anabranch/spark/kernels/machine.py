"""How the kernels of the pipeline are compiled and kept.

Their machine code is kept beside that of the matching kernels, under a digest of all sources that
they are made of: a change of any of them makes numba compile anew.
"""

from pathlib import Path

from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from anabranch.matching.kernels.cache import kept

#: Compiles a function that Python calls, and keeps it.
entry_point = kept("spark", Path(__file__).parent.glob("*.py"))


@intrinsic
def put_at(typingctx, array, index, value):
    """`array[index] = value` for an index that is not negative, which numba would have to ask."""

    def generate(context, builder, signature, arguments):
        view = make_array(signature.args[0])(context, builder, arguments[0])
        made = context.cast(builder, arguments[2], signature.args[2], signature.args[0].dtype)
        builder.store(made, builder.gep(view.data, [arguments[1]], inbounds=True))
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate
