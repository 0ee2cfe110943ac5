"""A network file as text again.

`dump(file)` is TOML that loads to an equal value from any directory: paths are absolute, and what
has its default is left out. `anabranch up` writes the file with the ports it has chosen this way,
so that other commands find the network.
"""

from collections.abc import Iterator, Mapping

from anabranch.config.addresses import LOOPBACK, BrokerSettings
from anabranch.config.choices import written
from anabranch.config.network_file import NetworkFile
from anabranch.config.positions import quoted_key, quoted_text
from anabranch.config.shape import Shape, TreeShape


def dump(file: NetworkFile) -> str:
    """The whole file."""
    return "\n".join(_lines(file)) + "\n"


def _lines(file: NetworkFile) -> Iterator[str]:
    head = {"name": file.name, "revision": file.revision, "routing": file.routing}
    yield from _table("network", head)
    yield from _shape(file.shape)
    for name, settings in file.brokers.items():
        yield from _table(f"brokers.{quoted_key(name)}", _broker(settings))
    for name, values in (("limits", written(file.limits)), ("options", written(file.options))):
        if values:
            yield from _table(name, values)
    if file.tls is not None:
        paths = {"ca": str(file.tls.ca), "certificate": file.tls.certificate, "key": file.tls.key}
        yield from _table("tls", paths)
    elif file.plaintext:
        yield from _table("tls", {"plaintext": True})


def _shape(shape: Shape) -> Iterator[str]:
    if isinstance(shape, TreeShape):
        yield from _table("tree", shape.below)
        return
    for name, site in shape.sites.items():
        yield from _table(
            f"sites.{quoted_key(name)}", {"brokers": site.brokers, "joins": site.joins}
        )


def _broker(settings: BrokerSettings) -> dict[str, object]:
    values: dict[str, object] = {
        "host": settings.host,
        "clients": settings.clients_port,
        "links": settings.links_port,
        "observe": settings.observe_port,
        "listen": settings.listen_host,
        "observe_host": settings.observe_host,
        "state": str(settings.state),
    }
    left_out = {"observe_host": LOOPBACK, "listen": settings.host}
    return {
        key: value for key, value in values.items() if value != 0 and value != left_out.get(key)
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
