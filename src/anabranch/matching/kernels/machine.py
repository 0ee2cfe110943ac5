"""How kernels are compiled and kept, and the few machine instructions that numba does not name.

A function that Python calls is an `entry_point`: it is cached on disk with all it calls. The
others are `kernel`s: they have no way in from Python, which leaves less to compile.

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
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

# -- the cache on disk -----------------------------------------------------------------------------


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


# -- decorators and instructions -------------------------------------------------------------------


_CACHE = str(cache_directory())


def entry_point(function):
    # numba asks for its cache directory at this moment only.
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _CACHE
    try:
        return njit(cache=True)(function)
    finally:
        numba.config.CACHE_DIR = before


_FROM_KERNELS_ONLY = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
kernel = njit(**_FROM_KERNELS_ONLY)  # type: ignore[call-overload]
#: A small kernel that becomes part of what calls it: an array is seven words to hand over.
inlined = njit(**_FROM_KERNELS_ONLY, forceinline=True)  # type: ignore[call-overload]


@intrinsic
def lowest_bit(typingctx, word):
    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@intrinsic
def highest_bit(typingctx, word):
    def generate(context, builder, signature, arguments):
        above = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))
        return builder.sub(ir.Constant(ir.IntType(64), 63), above)

    return types.int64(types.uint64), generate


@intrinsic
def bit_count(typingctx, word):
    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@intrinsic
def float_bits(typingctx, number):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def bits_float(typingctx, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def prefetch(typingctx, address):
    def generate(context, builder, signature, arguments):
        byte_pointer = ir.IntType(8).as_pointer()
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, word, word, word])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        pointer = builder.inttoptr(arguments[0], byte_pointer)
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def get(typingctx, array, index):
    """`array[index]` for an index that is not negative, which numba would have to ask."""

    def generate(target, builder, signature, arguments):
        view = make_array(signature.args[0])(target, builder, arguments[0])
        return builder.load(builder.gep(view.data, [arguments[1]], inbounds=True))

    return array.dtype(array, types.intp), generate


@intrinsic
def borrowed(typingctx, array):
    """The same array without a count of references, which every call would raise and lower.

    The caller of an entry point holds the array while it runs. The count is atomic, so it costs as
    much as reading an attribute does.
    """

    def generate(target, builder, signature, arguments):
        kind = signature.args[0]
        given = make_array(kind)(target, builder, arguments[0])
        view = make_array(kind)(target, builder)
        populate_array(view, given.data, given.shape, given.strides, given.itemsize, None)
        return view._getvalue()

    return array(array), generate


def _loader(bits):
    """An intrinsic that reads a word of the given width at any position of an array of bytes."""

    @intrinsic
    def load(typingctx, array, index):
        def generate(target, builder, signature, arguments):
            view = make_array(signature.args[0])(target, builder, arguments[0])
            kind = ir.IntType(bits)
            place = builder.gep(view.data, [arguments[1]], inbounds=True)
            word = builder.load(builder.bitcast(place, kind.as_pointer()), align=1)
            return word if bits == 64 else builder.zext(word, ir.IntType(64))

        return types.int64(array, types.intp), generate

    return load


word_of_bytes = _loader(64)
half_of_bytes = _loader(32)


@intrinsic
def swapped(typingctx, word):
    """A word with its bytes in reverse: messages have the highest first."""

    def generate(context, builder, signature, arguments):
        return builder.bswap(arguments[0])

    return types.int64(types.int64), generate


def _array_at(element, bytes_each):
    """An intrinsic that sees the array of a number, without copying or counting references.

    Plain pointers would do, but numba indexes arrays only. The length is a pretence: the kernels
    know how far they may go.
    """

    @intrinsic
    def array_at(typingctx, context, number):
        kind = types.Array(element, 1, "C")

        def generate(target, builder, signature, arguments):
            vector = make_array(signature.args[0])(target, builder, arguments[0])
            address = builder.load(builder.gep(vector.data, [arguments[1]]))
            view = make_array(kind)(target, builder)
            data = builder.inttoptr(address, view.data.type)
            size = target.get_constant(types.intp, bytes_each)
            length = target.get_constant(types.intp, 1 << 40)
            populate_array(view, data, (length,), (size,), size, None)
            return view._getvalue()

        return kind(context, types.intp), generate

    return array_at


words_at = _array_at(types.int64, 8)
bitmaps_at = _array_at(types.uint64, 8)
integers_at = _array_at(types.int32, 4)
bytes_at = _array_at(types.uint8, 1)


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
