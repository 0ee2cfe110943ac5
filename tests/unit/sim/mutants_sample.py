"""Functions of all kinds, for mutants to change."""

from collections.abc import Callable, Iterable
from functools import cached_property, wraps

NUMBER = 7


def plain(count: int) -> int:
    return count + 1


def nested(numbers: Iterable[int]) -> int:
    total = 0
    for each in numbers:
        if each > 1:
            total += each
    return total


def _exclaimed(function: Callable[[], str]) -> Callable[[], str]:
    @wraps(function)
    def wrapper() -> str:
        return function() + "!"

    return wrapper


@_exclaimed
def wrapped() -> str:
    return "old"


class Base:
    def inherited(self) -> str:
        return "inherited " + "old"


class Thing(Base):
    def __init__(self) -> None:
        self._level = 0

    @property
    def size(self) -> str:
        return "size " + "old"

    @cached_property
    def cached(self) -> str:
        return "cached " + "old"

    @staticmethod
    def fixed() -> str:
        return "fixed " + "old"

    @classmethod
    def made(cls) -> str:
        return "made " + "old"

    def method(self) -> str:
        return "method " + "old"

    @property
    def level(self) -> int:
        return self._level

    @level.setter
    def level(self, level: int) -> None:
        self._level = level
