"""The rules of the house, each a function from text to the problems it finds there.

A rule takes what it judges as text, so that the tests can show it a bad sample and see it object.
A problem is one line: the place, then what is wrong with it. Words that would make a rule object to
this very file are spelled in two halves.

Kernels are exempt from the limits of length, because a compiled loop that is split into functions
may lose half its speed: a function is a kernel if a decorator named in `KERNEL_DECORATORS` marks
it; a module is one if it holds the line `KERNEL_MODULE`, and then it has to hold kernels only.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
HEADER_CHARACTERS_MIN = 60
README_LINES_MAX = 60

KERNEL_DECORATORS = {"njit", "jit", "kernel", "entry_point", "vectorize", "guvectorize"}
KERNEL_MODULE = "# tidy: kernels only"

MARKERS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK", "PLACE" + "HOLDER")
ANY_MARKER = re.compile(rf"\b(?:{'|'.join(MARKERS)})\b")
LINE_END = "\n"
UNWRITTEN = "NotImplemented" + "Error"
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "handler", "handlers"}
VAGUE_NAMES |= {"impl", "base", "common", "misc"}
CORE_BANS = {"asyncio", "socket", "ssl", "time", "random", "threading", "multiprocessing", "os"}
CORE_BANS |= {"logging", "datetime", "secrets", "uuid", "subprocess", "selectors", "signal"}
#: Methods by which a built-in container changes.
CHANGES = {"append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"}
CHANGES |= {"popleft", "setdefault", "update"}
OUTSIDE = re.compile(
    r"(?<![\w.~-])/(?:wo" + r"rk|ho" + r"me|ro" + r"ot|t" + r"mp)(?![\w-])|\.\./sha" + r"red"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def long_module(text: str) -> Iterator[str]:
    """A module has at most `MODULE_LINES_MAX` lines."""
    count = len(text.splitlines())
    if count > MODULE_LINES_MAX and not _is_kernel_module(text):
        yield f"1: {count} lines, at most {MODULE_LINES_MAX} are allowed"


def false_kernel_module(text: str) -> Iterator[str]:
    """A module that claims to hold kernels only holds no other function."""
    if _is_kernel_module(text):
        for function in _functions(ast.parse(text)):
            if not _is_kernel(function):
                yield f"{function.lineno}: {function.name} is no kernel, its module says it is"


def long_functions(text: str) -> Iterator[str]:
    """A function has at most `FUNCTION_LINES_MAX` lines, unless it is a kernel."""
    for function in _functions(ast.parse(text)):
        count = (function.end_lineno or function.lineno) - function.lineno + 1
        if count > FUNCTION_LINES_MAX and not _is_kernel(function):
            yield f"{function.lineno}: {function.name} has {count} lines"


def long_lines(text: str) -> Iterator[str]:
    """A line has at most `COLUMNS_MAX` columns."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > COLUMNS_MAX:
            yield f"{number}: {len(line)} columns, at most {COLUMNS_MAX} are allowed"


def missing_header(text: str) -> Iterator[str]:
    """A module that holds anything opens with prose about it."""
    # To parse a thousand modules for their first words takes seconds.
    is_plain = text.startswith('"""')
    header = text.split('"""', 2)[1] if is_plain else ast.get_docstring(ast.parse(text))
    if text.strip() and len(header or "") < HEADER_CHARACTERS_MIN:
        yield "1: the module does not open with prose that says what it is"


def paths_outside(text: str) -> Iterator[str]:
    """No text names a place outside the repository."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in OUTSIDE.findall(line):
            yield f"{number}: {found} lies outside the repository"


def leftover_markers(text: str) -> Iterator[str]:
    """Nothing is left for later inside the code."""
    for found in ANY_MARKER.finditer(text):
        yield f"{text.count(LINE_END, 0, found.start()) + 1}: leftover {found[0]}"


def unwritten_code(text: str) -> Iterator[str]:
    """No function exists only to say that it does not."""
    if UNWRITTEN not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id == UNWRITTEN:
            yield f"{node.lineno}: code that is not written"


def vague_name(path: str) -> Iterator[str]:
    """A module is named for its one idea."""
    for part in Path(path).with_suffix("").parts:
        if VAGUE_NAMES & set(part.split("_")):
            yield f"{path}: {part} does not say what it holds"


def impure_core(text: str) -> Iterator[str]:
    """The core has no clock, no chance, no input or output, no threads, no async."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.AsyncFunctionDef):
            yield f"{node.lineno}: {node.name} is async"
        for name in _imported(node):
            if name.split(".")[0] in CORE_BANS:
                yield f"{getattr(node, 'lineno', 1)}: imports {name}"


def foreign_writes(text: str) -> Iterator[str]:
    """A module writes only attributes of its own classes, and containers in them.

    Without types: an attribute of anything but `self` is foreign unless a class of the module has
    an attribute of that name.
    """
    tree = ast.parse(text)
    own = {name for node in ast.walk(tree) for name in _declared(node)}
    for node in ast.walk(tree):
        for written in _written(node):
            if written.attr not in own and not _is_self(written.value):
                yield f"{written.lineno}: writes {ast.unparse(written)}"


def prints(text: str) -> Iterator[str]:
    """Only the command talks to the terminal, and a module that is itself run as one."""
    if "print" not in text:
        return
    tree = ast.parse(text)
    tree.body = [statement for statement in tree.body if not _is_main_guard(statement)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_name(node.func) == "print":
            yield f"{node.lineno}: prints"


def dead_links(text: str, folder: Path) -> Iterator[str]:
    """A link to a file leads to a file."""
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(text)):
        if not re.match(r"[a-z]+:|#", target) and not (folder / target.split("#")[0]).exists():
            yield f"the link to {target} leads nowhere"


def missing_tests(text: str, root: Path) -> Iterator[str]:
    """A test that a page names exists, down to the function."""
    for name, function in re.findall(r"`(tests/[\w/.-]+\.py)(?:::(\w+))?`", text):
        path = root / name
        if not path.exists():
            yield f"{name} does not exist"
        elif function and not re.search(rf"def {function}\(", path.read_text()):
            yield f"{name} holds no {function}"


def loose_pins(text: str) -> Iterator[str]:
    """The constraints file pins exact versions and names no place to get them from."""
    for number, line in enumerate(text.splitlines(), 1):
        if not re.fullmatch(r"(#.*|[A-Za-z0-9._-]+==[\w.!+-]+)?", line):
            yield f"{number}: {line!r} is no exact pin"


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"


def _is_kernel_module(text: str) -> bool:
    return KERNEL_MODULE in text.splitlines()


def _is_kernel(function: Function) -> bool:
    return any(_last_name(mark) in KERNEL_DECORATORS for mark in function.decorator_list)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _functions(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _declared(node: ast.AST) -> Iterator[str]:
    """The attributes that a class declares, and those that a method assigns to `self`."""
    if isinstance(node, ast.ClassDef):
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                yield each.target.id
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for part in ast.walk(target):
                if isinstance(part, ast.Attribute) and _is_self(part.value):
                    yield part.attr


def _written(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a node assigns, deletes, or changes as containers."""
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        yield node
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        if isinstance(node.value, ast.Attribute):
            yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        changed = node.func.value
        if node.func.attr in CHANGES and isinstance(changed, ast.Attribute):
            yield changed


def _without_code(text: str) -> str:
    """Drops fenced blocks and inline code, in which brackets are not links."""
    text = re.sub(r"^( *```).*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)
