"""How the kernels of the pipeline are compiled and kept.

Their machine code is kept beside that of the matching kernels, under a digest of all sources that
they are made of: a change of any of them makes numba compile anew.
"""

import hashlib
from pathlib import Path

import numba
from numba import njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from anabranch.matching.kernels.cache import cache_directory
from anabranch.store.bulk.kernels import machine as bulk_machine

_HERE = Path(__file__).parent


def _own_directory():
    """The directory for the machine code of these kernels; it exists when this returns."""
    state = hashlib.sha256()
    for source in (*sorted(_HERE.glob("*.py")), Path(bulk_machine.__file__)):
        state.update(source.name.encode())
        state.update(source.read_bytes())
    own = cache_directory() / f"spark-{state.hexdigest()[:16]}"
    own.mkdir(exist_ok=True)
    return own


_CACHE = str(_own_directory())


def entry_point(function):
    """Compile a function that Python calls, and keep it."""
    # numba asks for its cache directory at this moment only.
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _CACHE
    try:
        return njit(cache=True, nogil=True)(function)
    finally:
        numba.config.CACHE_DIR = before


@intrinsic
def put_at(typingctx, array, index, value):
    """`array[index] = value` for an index that is not negative, which numba would have to ask."""

    def generate(context, builder, signature, arguments):
        view = make_array(signature.args[0])(context, builder, arguments[0])
        made = context.cast(builder, arguments[2], signature.args[2], signature.args[0].dtype)
        builder.store(made, builder.gep(view.data, [arguments[1]], inbounds=True))
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate
