"""A network file as text again.

`dump(file)` is TOML that loads to an equal value from any directory: paths are absolute, and what
has its default is left out. `anabranch up` writes the file with the ports it has chosen this way,
so that other commands find the network. With `beside`, paths below that directory are relative, for
a file that stands there. `save` writes a text so that nobody ever reads half of it.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from anabranch.config.addresses import LOOPBACK, BrokerSettings
from anabranch.config.choices import written
from anabranch.config.mesh_shape import MeshShape
from anabranch.config.network_file import NetworkFile
from anabranch.config.positions import quoted_key, quoted_text
from anabranch.config.shape import Shape, TreeShape


def dump(file: NetworkFile, beside: Path | None = None) -> str:
    """The whole file."""
    return "\n".join(_lines(file, "" if beside is None else f"{beside}{os.sep}")) + "\n"


def save(path: Path, text: str) -> None:
    """Put a text in the place of a file, whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _lines(file: NetworkFile, near: str) -> Iterator[str]:
    head: dict[str, object] = {"name": file.name, "revision": file.revision}
    head["routing"] = file.routing
    if file.left:
        head["left"] = file.left
    if file.statistics is not None:
        head["statistics"] = str(file.statistics).removeprefix(near)
    if file.secret_file is not None:
        head["secret_file"] = str(file.secret_file).removeprefix(near)
    yield from _table("network", head)
    yield from _shape(file.shape)
    for name, settings in file.brokers.items():
        yield from _table(f"brokers.{quoted_key(name)}", _broker(settings, near))
    for name, values in (("limits", written(file.limits)), ("options", written(file.options))):
        if values:
            yield from _table(name, values)
    if file.tls is not None:
        paths = {"ca": str(file.tls.ca), "certificate": file.tls.certificate, "key": file.tls.key}
        yield from _table("tls", {key: path.removeprefix(near) for key, path in paths.items()})
    elif file.plaintext:
        yield from _table("tls", {"plaintext": True})


def _shape(shape: Shape) -> Iterator[str]:
    if isinstance(shape, TreeShape):
        yield from _table("tree", shape.below)
        return
    if isinstance(shape, MeshShape):
        yield from _mesh(shape)
        return
    for name, site in shape.sites.items():
        yield from _table(
            f"sites.{quoted_key(name)}", {"brokers": site.brokers, "joins": site.joins}
        )


def _mesh(shape: MeshShape) -> Iterator[str]:
    """One link on each line, so that an error of a link has a line of its own."""
    yield "[mesh]"
    yield "links = ["
    yield from (f"    {_value(link)}," for link in shape.links)
    yield "]"
    if shape.relays:
        yield f"relays = {_value(shape.relays)}"
    yield ""


def _broker(settings: BrokerSettings, near: str) -> dict[str, object]:
    values: dict[str, object] = {
        "host": settings.host,
        "clients": settings.clients_port,
        "links": settings.links_port,
        "observe": settings.observe_port,
        "listen": settings.listen_host,
        "observe_host": settings.observe_host,
        "observe_hosts": settings.observe_hosts,
        "observe_token_file": str(settings.observe_token_file or "").removeprefix(near),
        "state": str(settings.state).removeprefix(near),
    }
    left_out = {"observe_host": LOOPBACK, "listen": settings.host}
    return {
        key: value
        for key, value in values.items()
        if value not in {0, "", ()} and value != left_out.get(key)
    }


def _table(name: str, values: Mapping[str, object]) -> Iterator[str]:
    yield f"[{name}]"
    for key, value in values.items():
        yield f"{quoted_key(key)} = {_value(value)}"
    yield ""


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return quoted_text(str(value))
