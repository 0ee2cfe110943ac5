"""Mutants: planted bugs that prove that the checker can fail, applied to the running process.

A mutant is a list of edits. Each edit names a function, a text in it, and the text in its place.
The product knows nothing of them. Theory of operation: `planted` takes the source of the function's
module, replaces the text inside the function, compiles the changed module, picks the code object
with the function's qualified name and puts it into the function (`__code__`). On exit it puts the
old code objects back. Objects, classes and references to functions stay the same, so it does not
matter who imported what before. Rules:

1. The text must occur exactly once in its function. Otherwise `MutantError` names the mutant, so an
   edit of the product that moves the text cannot switch a mutant off unnoticed.
2. Lines of a text that follow its first one are indented relative to it.
3. New text may use every name that is in scope there, and import others. It must not make the
   function a generator, or close over more variables.
4. Several mutants may be on at once, in one function too, as long as their texts do not overlap.
   Contexts may be nested if they change different functions.
5. Code that runs when a mutant is entered, or left, goes on as it was. A mutant of `__init__` needs
   to be entered before the object is made.

State: which functions are changed. Prior art: mutation testing (DeMillo, Lipton, Sayward 1978).
"""

import functools
import importlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Final, NamedTuple

from anabranch.core.routing.registry import RoutingName
from anabranch.model.errors import LocalError
from anabranch.sim.faults import ANY


class MutantError(LocalError):
    """A mutant does not fit the code that it changes."""


class Edit(NamedTuple):
    """One text in one function, and what replaces it."""

    #: `package.module:Class.function`.
    where: str
    old: str
    new: str


class Mutant:
    """One planted bug, and how it is found."""

    __slots__ = (
        "anomaly",
        "copies",
        "edits",
        "faults",
        "found_by",
        "mesh_seed",
        "routing",
        "seed",
        "text",
    )

    def __init__(
        self,
        text: str,
        *edits: Edit,
        seed: int | None = None,
        anomaly: str = "",
        routing: RoutingName = "tree",
        mesh_seed: int | None = None,
        faults: str = ANY,
        found_by: str = "",
        copies: bool = False,
    ) -> None:
        #: What is wrong.
        self.text = text
        self.edits = edits
        #: A seed that shows it, as this anomaly, with this routing.
        self.seed = seed
        self.anomaly = anomaly
        self.routing: RoutingName = routing
        #: A seed of meshes that shows the same anomaly, for a mutant that routings share.
        self.mesh_seed = mesh_seed
        #: Faults that it needs, as in `fault_mix`.
        self.faults = faults
        #: The test that finds it. Invariant: either this or a seed is given.
        self.found_by = found_by
        #: Whether streams must have copies.
        self.copies = copies
        assert (seed is None) != (not found_by)


#: Functions whose code is a mutant's now.
_changed: Final[set[FunctionType]] = set()


@contextmanager
def applied(mutants: Sequence[tuple[str, Mutant]]) -> Iterator[None]:
    """Run with these mutants, each with its name."""
    edits: dict[FunctionType, list[tuple[str, Edit]]] = {}
    for name, mutant in mutants:
        for edit in mutant.edits:
            edits.setdefault(function_at(name, edit.where), []).append((name, edit))
    codes = {function: _code_of(function, tuple(some)) for function, some in edits.items()}
    for function, some in edits.items():
        if function in _changed:
            raise MutantError(f"mutant {some[0][0]!r}: {some[0][1].where} is changed already")
    before = {function: function.__code__ for function in codes}
    try:
        for function, code in codes.items():
            function.__code__ = code
            _changed.add(function)
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code
            _changed.discard(function)


def function_at(name: str, where: str) -> FunctionType:
    """The function that an edit of this mutant names, inside properties and other wrappers."""
    module, _, path = where.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = inspect.getattr_static(found, part)
    except (ImportError, AttributeError) as error:
        raise MutantError(f"mutant {name!r}: there is no {where}: {error}") from error
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, functools.cached_property):
        found = found.func
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if callable(found):
        found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise MutantError(f"mutant {name!r}: {where} is not a Python function")
    return found


@functools.cache
def _code_of(function: FunctionType, edits: tuple[tuple[str, Edit], ...]) -> CodeType:
    """The code of a function after some edits, each with the name of its mutant."""
    before = function.__code__
    module, _ = inspect.findsource(function)
    own, first = inspect.getsourcelines(function)
    text = "".join(own)
    for name, edit in edits:
        text = _replaced(name, text, edit)
    source = "".join([*module[: first - 1], text, *module[first - 1 + len(own) :]])
    name, edit = edits[-1]
    try:
        compiled = compile(source, before.co_filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise MutantError(f"mutant {name!r}: {edit.where} does not compile: {error}") from error
    for code in _all_codes(compiled):
        place = (code.co_qualname, code.co_firstlineno)
        if place == (before.co_qualname, before.co_firstlineno):
            if code.co_freevars != before.co_freevars or code.co_flags != before.co_flags:
                raise MutantError(f"mutant {name!r} makes {edit.where} a function of another kind")
            return code
    raise MutantError(f"mutant {name!r}: {edit.where} is not where its source was")


def _replaced(name: str, text: str, edit: Edit) -> str:
    """A function's text after an edit (rules 1 and 2)."""
    found: list[tuple[int, str, str]] = []
    start = text.find(edit.old.split("\n", 1)[0])
    while start >= 0:
        line = text[text.rfind("\n", 0, start) + 1 :]
        indent = line[: len(line) - len(line.lstrip())]
        old, new = (each.replace("\n", "\n" + indent) for each in (edit.old, edit.new))
        if text.startswith(old, start):
            found.append((start, old, new))
        start = text.find(edit.old.split("\n", 1)[0], start + 1)
    if len(found) != 1 or edit.old == edit.new:
        raise MutantError(
            f"mutant {name!r}: {edit.where} has this text {len(found)} times instead of once:"
            f" {edit.old!r}"
        )
    start, old, new = found[0]
    return text[:start] + new + text[start + len(old) :]


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _all_codes(each)
