"""A misspelt keyword or choice is an error that suggests the right one, or lists those there are.

    client.publish({"n": 1}, time_limt=3)
    TypeError: publish() got an unexpected keyword argument 'time_limt'; did you mean 'time_limit'?

    client.publish({"n": 1}, ttl=5)
    TypeError: publish() got an unexpected keyword argument 'ttl'; its keywords are payload, …

    anabranch.connect("127.0.0.1:4100", order="steam")
    LocalError: order='steam' is invalid; give 'publisher' or 'stream'

Stateless.
"""

import difflib
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ParamSpec, TypeVar, cast, get_args

from anabranch.model.errors import LocalError

P = ParamSpec("P")
Result = TypeVar("Result")


def check_choice(name: str, value: object, choices: Any, hint: str = "") -> None:
    """Raise `LocalError` unless the value of an argument is one of these, a `Literal`."""
    if value not in get_args(choices):
        listed = " or ".join(map(repr, get_args(choices)))
        raise LocalError(f"{name}={value!r} is invalid; give {listed}{hint}")


def suggest_keywords(function: Callable[P, Result]) -> Callable[P, Result]:
    """Make the error of an unexpected keyword argument name the nearest one, or all of them."""
    known = inspect.signature(function).parameters
    keywords = [name for name, each in known.items() if each.kind is each.KEYWORD_ONLY]
    # A class is called by its own name.
    called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    def check(names: Iterable[str]) -> None:
        for name in names:
            if name not in known:
                nearest = difflib.get_close_matches(name, keywords, 1)
                hint = (
                    f"did you mean {nearest[0]!r}?"
                    if nearest
                    else f"its keywords are {', '.join(keywords)}"
                )
                raise TypeError(f"{called}() got an unexpected keyword argument {name!r}; {hint}")

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Result:
        check(kwargs)
        return function(*args, **kwargs)

    @functools.wraps(function)
    async def checked_coroutine(*args: P.args, **kwargs: P.kwargs) -> object:
        check(kwargs)
        return await cast("Awaitable[object]", function(*args, **kwargs))

    # Documentation and callers can tell that a coroutine function is one.
    is_coroutine = inspect.iscoroutinefunction(function)
    return cast("Callable[P, Result]", checked_coroutine) if is_coroutine else checked
