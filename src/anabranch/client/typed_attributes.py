"""Typed access to the attributes of an event: `received.float("price")`.

`received["price"]` returns whatever type the publisher chose. A reader that expects a type gets an
`AttributeTypeError` here, which names the attribute, the wanted type and the found one, instead of
a failure further on. Rules:

1. An integer is accepted where a float is wanted, and is read as a timestamp where a datetime is
   wanted (`model.timestamps`); no other types are converted.
2. A default is returned only if the attribute is absent. An attribute of another type is an error
   even then.

Stateless.
"""

import builtins
from abc import abstractmethod
from datetime import datetime as Datetime  # noqa: N812 - a method has its name
from typing import TypeVar, overload

from anabranch.client.errors import AttributeTypeError
from anabranch.model.event import Value
from anabranch.model.timestamps import datetime_of

Default = TypeVar("Default")
Wanted = TypeVar("Wanted", str, int, float, bool)


class _Required:
    """The default of an attribute that must be present."""

    def __repr__(self) -> str:
        return "<required>"


_REQUIRED = _Required()
_NAMES = {str: "text", int: "integer", float: "float", bool: "boolean"}


class TypedAttributes:
    """The typed access of everything that has attributes."""

    __slots__ = ()

    @abstractmethod
    def get(self, name: str, default: Value | None = None) -> Value | None:
        """Return the value of an attribute, or `default` if the event does not have it."""

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, default: Default) -> str | Default: ...
    def text(self, name: str, default: Default | _Required = _REQUIRED) -> str | Default:
        """Return an attribute that must be text.

        Returns `default`, if given, when the event does not have the attribute. Raises
        `AttributeTypeError` if it has another type, or if it is absent and there is no default.
        """
        return self._typed(name, str, default)

    @overload
    def int(self, name: str) -> builtins.int: ...
    @overload
    def int(self, name: str, default: Default) -> builtins.int | Default: ...
    def int(self, name: str, default: Default | _Required = _REQUIRED) -> builtins.int | Default:
        """Return an attribute that must be an integer. See `text` for `default` and errors."""
        return self._typed(name, builtins.int, default)

    @overload
    def float(self, name: str) -> builtins.float: ...
    @overload
    def float(self, name: str, default: Default) -> builtins.float | Default: ...
    def float(
        self, name: str, default: Default | _Required = _REQUIRED
    ) -> builtins.float | Default:
        """Return an attribute that must be a number, as a float. See `text` for `default` and
        errors.
        """
        value = self.get(name)
        if type(value) is builtins.int:
            return builtins.float(value)
        return self._typed(name, builtins.float, default)

    @overload
    def bool(self, name: str) -> builtins.bool: ...
    @overload
    def bool(self, name: str, default: Default) -> builtins.bool | Default: ...
    def bool(self, name: str, default: Default | _Required = _REQUIRED) -> builtins.bool | Default:
        """Return an attribute that must be a boolean. See `text` for `default` and errors."""
        return self._typed(name, builtins.bool, default)

    @overload
    def datetime(self, name: str) -> Datetime: ...
    @overload
    def datetime(self, name: str, default: Default) -> Datetime | Default: ...
    def datetime(self, name: str, default: Default | _Required = _REQUIRED) -> Datetime | Default:
        """Return an attribute that must be an integer, nanoseconds since 1970, as a datetime in
        UTC.

        A datetime has microseconds: the rest is dropped, towards the past. `int` returns all of it.
        See `text` for `default` and errors.
        """
        value = self.get(name)
        if type(value) is builtins.int:
            return datetime_of(value)
        return self._other(name, value, "integer of nanoseconds since 1970", default)

    def _typed(
        self, name: str, wanted: type[Wanted], default: Default | _Required
    ) -> Wanted | Default:
        value = self.get(name)
        if type(value) is wanted:
            return value
        return self._other(name, value, _NAMES[wanted], default)

    def _other(
        self, name: str, value: Value | None, wanted: str, default: Default | _Required
    ) -> Default:
        if value is not None:
            found = f"{_NAMES[type(value)]} ({value!r:.100})"
            raise AttributeTypeError(name, wanted, found)
        if isinstance(default, _Required):
            raise AttributeTypeError(name, wanted, "")
        return default
