"""`[limits]` and `[options]` of a network file: every field of `Limits` and `Options` by its name.

The fields, their kinds and their defaults are those of the two values, so a new field can be
written in a file the day it exists. What is here is only which values make sense. Rules:

1. A count or a size is at least 1, a time more than nothing and at most a day, where the tables
   below do not say otherwise.
2. A frame has room for the largest event and what travels with it.
3. A link is not cut before a heartbeat was due.
"""

from typing import TypeVar, get_args

import msgspec

from anabranch.config.errors import ConfigError
from anabranch.config.reading import INTEGER_MAX, Table
from anabranch.core.options import Options
from anabranch.model.errors import LocalError
from anabranch.model.limits import Limits, clients_bytes_max

Choices = TypeVar("Choices", Limits, Options)

#: Bytes of a frame beside its event: header, vector, edges.
FRAME_BESIDE_EVENT_BYTES = 65_536
_TIME_LOWEST_S = 0.001
_TIME_HIGHEST_S = 86_400.0
_AGE_HIGHEST_S = 100 * 365 * 86_400.0
#: Where more than a day may be wanted.
_AGES = {"incarnation_lead_s", "keep_s", "life_lead_s"}
#: Where nothing is a sensible choice: no payload, no waiting.
_MAY_BE_ZERO = {
    "destinations_max",
    "interest_after_s",
    "keep_s",
    "mark_after_s",
    "nack_after_s",
    "payload_bytes_max",
    "silence_after_s",
}
#: Where the encoding ends earlier than the integers do.
_HIGHEST = {"destinations_max": 65_535, "frame_bytes_max": 2**32 - 1}


def read_limits(table: Table) -> Limits:
    """The limits of a network; what is not written has its default."""
    limits = _read(table, Limits)
    if clients_bytes_max(limits) < limits.frame_bytes_max:
        key = "memory_bytes_max" if table.has("memory_bytes_max") else "frame_bytes_max"
        raise table.error(
            key,
            f"clients may hold {clients_bytes_max(limits)} bytes of memory together, and a single"
            f" frame has up to {limits.frame_bytes_max}; make memory_bytes_max at least eight times"
            " frame_bytes_max",
        )
    least = limits.event_bytes_max + FRAME_BESIDE_EVENT_BYTES
    if limits.frame_bytes_max < least:
        key = "frame_bytes_max" if table.has("frame_bytes_max") else "event_bytes_max"
        raise table.error(
            key,
            f"a frame of {limits.frame_bytes_max} bytes has no room for an event of"
            f" {limits.event_bytes_max}; frame_bytes_max must be at least {least}",
        )
    return limits


def read_options(table: Table) -> Options:
    """The options of a network; what is not written has its default."""
    try:
        options = _read(table, Options)
    except LocalError as error:
        if isinstance(error, ConfigError):
            raise
        raise table.error("log_age_s_max", str(error)) from error
    if options.dead_after_s <= options.heartbeat_s:
        key = "dead_after_s" if table.has("dead_after_s") else "heartbeat_s"
        raise table.error(
            key,
            f"links would be cut after {options.dead_after_s} s of silence, but heartbeats come"
            f" every {options.heartbeat_s} s; make dead_after_s several times heartbeat_s",
        )
    return options


def written(value: Limits | Options) -> dict[str, object]:
    """What differs from the defaults: what a file has to say."""
    default = type(value)()
    pairs = msgspec.structs.asdict(value).items()
    return {k: v for k, v in pairs if v != getattr(default, k)}


def _read(table: Table, kind: type[Choices]) -> Choices:
    fields = msgspec.structs.fields(kind)
    table.only(field.name for field in fields)
    values = {field.name: _value(table, field) for field in fields}
    return msgspec.convert(values, kind)


def _value(table: Table, field: msgspec.structs.FieldInfo) -> object:
    name, default = field.name, field.default
    zero = name in _MAY_BE_ZERO
    if isinstance(default, bool):
        return table.truth(name, default)
    if isinstance(default, int):
        return table.integer(name, default, 0 if zero else 1, _HIGHEST.get(name, INTEGER_MAX))
    if default is None and int in get_args(field.type):
        return table.integer(name, 1, 1, INTEGER_MAX) if table.has(name) else None
    if default is None:
        # There is no such limit unless it is written.
        return table.number(name, 1.0, _TIME_LOWEST_S, _AGE_HIGHEST_S) if table.has(name) else None
    if isinstance(default, float):
        highest = _AGE_HIGHEST_S if name in _AGES else _TIME_HIGHEST_S
        return table.number(name, default, 0.0 if zero else _TIME_LOWEST_S, highest)
    return table.choice(name, get_args(field.type), str(default))
