"""Edits of a network file: add and remove brokers, sites and links, as the next revision.

    file = add_relay(load(path), "r3", site="core", at=At(host="10.0.0.7", links=4101))
    rewrite(file)

Every function takes a network file and returns a new one, with the next revision.

Rules

1. The result is consistent: it has passed all checks of `load`.
2. A removed edge is recorded in `left`: other brokers still have its stream, so its name must not
   be reused.
3. A mesh stays connected: an edit that would split it is rejected, with the names of the brokers
   that would be cut off.
4. A broker that `keepers` of another broker names is not removed: the operator names another keeper
   first, because its copy is to be filled before this one is lost.
5. `rewrite` replaces the file atomically and keeps the previous one beside it, with its revision
   appended to the name. It changes only the keys that differ, so comments and layout survive.
"""

import tomllib
from collections.abc import Iterable, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from tomlkit.items import Array, Table

from anabranch.config.addresses import LOOPBACK, BrokerSettings
from anabranch.config.errors import ConfigError
from anabranch.config.network_file import NetworkFile, dump, loads, save
from anabranch.config.shape import MeshShape, Shape, Site, SitesShape, TreeShape
from anabranch.config.survey import near_over, ordered, parts_without
from anabranch.config.toml_reader import listed, nearest
from anabranch.model.errors import LocalError
from anabranch.model.network import Network


class At(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses and state directory of a new broker; ports of 0 are chosen later."""

    host: str = LOOPBACK
    clients: int = 0
    links: int = 0
    observe: int = 0
    listen: str = ""
    state: Path | None = None


def add_relay(file: NetworkFile, name: str, site: str, at: At) -> NetworkFile:
    """Add a broker to an existing site."""
    shape = _sites(file, "add the broker below another broker, or with links to others")
    found = _site(file, shape, site)
    if site in file.network.edges:
        raise _error(file, f"{site!r} is the client site of one broker; choose another site")
    sites = shape | {site: msgspec.structs.replace(found, brokers=(*found.brokers, name))}
    return _next(file, SitesShape(sites), [name], at)


def add_edge(file: NetworkFile, name: str, below: str, at: At) -> NetworkFile:
    """Add a broker that serves clients, below a site or, in a tree of brokers, below a broker.

    For a mesh use `add_linked`."""
    if isinstance(file.shape, TreeShape):
        file.broker(below)
        tree = file.shape.below
        return _next(file, TreeShape(tree | {below: (*tree.get(below, ()), name)}), [name], at)
    shape = _sites(file, "give the brokers to link to: --link-to BROKER")
    _site(file, shape, below)
    return _next(file, SitesShape(shape | {name: Site((name,), (below,))}), [name], at)


def add_site(
    file: NetworkFile, site: str, brokers: Iterable[str], joins: Iterable[str], at: At
) -> NetworkFile:
    """Add a site with its brokers, joined to existing sites."""
    shape = _sites(file, "add brokers instead")
    if site in shape:
        raise _error(file, f"site {site!r} already exists; add brokers to it")
    members = tuple(brokers)
    new = [name for name in members if name not in file.brokers]
    return _next(file, SitesShape(shape | {site: Site(members, tuple(joins))}), new, at)


def remove_broker(file: NetworkFile, name: str) -> NetworkFile:
    """Remove a broker, and its client site if it has one."""
    file.broker(name)
    if isinstance(file.shape, TreeShape):
        return _next(file, _tree_without(file, file.shape.below, name))
    if isinstance(file.shape, MeshShape):
        return _next(file, _mesh_without(file, file.shape, name))
    shape = dict(_sites(file, ""))
    for site, found in _sites(file, "").items():
        if found.brokers == (name,) and site != name:
            raise _error(file, f"{name!r} is the only broker of site {site!r}; remove the site")
        kept = tuple(broker for broker in found.brokers if broker != name)
        shape[site] = msgspec.structs.replace(found, brokers=kept)
    return _next(file, _sites_without(shape, name))


def remove_site(file: NetworkFile, site: str) -> NetworkFile:
    """Remove a site, and its brokers that are in no other site."""
    shape = _sites(file, "remove brokers instead")
    _site(file, shape, site)
    return _next(file, _sites_without(shape, site))


# -- meshes ---------------------------------------------------------------------------------------


def add_linked(
    file: NetworkFile, name: str, others: Iterable[str], at: At, *, is_relay: bool = False
) -> NetworkFile:
    """Add a broker to a mesh, with links to existing brokers."""
    shape = _mesh(file, "add the broker below another one, or to a site")
    ends = list(others)
    if not ends:
        raise _error(file, f"{name!r} needs a link to an existing broker")
    for number, other in enumerate(ends):
        file.broker(other)
        if other in ends[:number]:
            raise _error(file, f"duplicate link to {other!r}; give each broker once")
    links = (*shape.links, *((name, other) for other in ends))
    relays = (*shape.relays, name) if is_relay else shape.relays
    return _next(file, MeshShape(links, relays), [name], at)


def add_link(file: NetworkFile, one: str, other: str) -> NetworkFile:
    """Add a link between two brokers of a mesh."""
    shape = _mesh(file, "another link would close a cycle; describe the network as [mesh] first")
    for name in (one, other):
        file.broker(name)
    if one == other:
        raise _error(file, f"{one!r} cannot have a link to itself; give two brokers")
    if _link(shape, one, other):
        raise _error(file, f"{one!r} and {other!r} are already linked")
    return _next(file, MeshShape((*shape.links, (one, other)), shape.relays))


def remove_link(file: NetworkFile, one: str, other: str) -> NetworkFile:
    """Remove a link from a mesh that stays connected without it."""
    shape = _mesh(file, "removing a link would split it; remove brokers instead")
    for name in (one, other):
        file.broker(name)
    gone = _link(shape, one, other)
    if gone is None:
        linked = listed(file.network.links_of(one))
        raise _error(file, f"{one!r} and {other!r} are not linked; {one!r} has links to {linked}")
    parts = parts_without(near_over(shape.links), link=gone)
    if len(parts) > 1:
        raise _error(
            file,
            f"removing the link between {one!r} and {other!r} would split the network:"
            f" {listed(parts[1])} would be cut off from {listed(parts[0])}; add another link first",
        )
    kept = tuple(link for link in shape.links if link != gone)
    return _next(file, MeshShape(kept, shape.relays))


def rewrite(file: NetworkFile) -> Path:
    """Replace the file of a network; returns the path of the kept previous revision."""
    path = file.path
    text = path.read_text(encoding="utf-8")
    before = loads(text, path)
    kept = path.with_name(f"{path.name}.{before.revision}")
    save(kept, text)
    save(path, _edited(text, before, file))
    return kept


def _edited(text: str, before: NetworkFile, after: NetworkFile) -> str:
    """The text of a network file, with the keys changed in which two networks differ (rule 5)."""
    beside = before.path.absolute().parent
    document = tomlkit.parse(text)
    _edit_table(document, tomllib.loads(dump(before, beside)), tomllib.loads(dump(after, beside)))
    return tomlkit.dumps(document)


def _edit_table(
    table: MutableMapping[str, Any], before: dict[str, Any], after: dict[str, Any]
) -> None:
    for key in before.keys() - after.keys():
        table.pop(key, None)
    for key, value in after.items():
        old, written = before.get(key), table.get(key)
        if old == value:
            continue
        if isinstance(value, dict):
            if isinstance(written, dict):
                _edit_table(written, old if isinstance(old, dict) else {}, value)
            else:
                table[key] = _new_table(value)
        elif isinstance(value, list) and isinstance(written, Array):
            _edit_array(written, value)
        else:
            table[key] = value


def _edit_array(array: Array, wanted: list[Any]) -> None:
    """Remove and append elements, which keeps the comments of the others."""
    for element in [each for each in array.unwrap() if each not in wanted]:
        array.remove(element)
    has_lines = "\n" in array.as_string()
    for element in [each for each in wanted if each not in array.unwrap()]:
        if has_lines:
            array.add_line(element)
        else:
            array.append(element)
    if array.unwrap() != wanted:
        array.clear()
        array.extend(wanted)


def _new_table(values: dict[str, Any]) -> Table:
    table = tomlkit.table(is_super_table=all(isinstance(each, dict) for each in values.values()))
    for key, value in values.items():
        table.add(key, _new_table(value) if isinstance(value, dict) else value)
    if not table.is_super_table():
        table.add(tomlkit.nl())
    return table


# -- inside ---------------------------------------------------------------------------------------


def _sites(file: NetworkFile, advice: str) -> dict[str, Site]:
    if isinstance(file.shape, SitesShape):
        return file.shape.sites
    what = "a mesh" if isinstance(file.shape, MeshShape) else "a tree of brokers"
    raise _error(file, f"this network is {what} and has no sites; {advice}")


def _site(file: NetworkFile, sites: dict[str, Site], name: str) -> Site:
    if name not in sites:
        raise _error(file, f"unknown site {name!r}; {nearest(name, sites)}")
    return sites[name]


def _sites_without(sites: dict[str, Site], gone: str) -> SitesShape:
    def without(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name != gone)

    kept = {name: site for name, site in sites.items() if name != gone}
    return SitesShape({name: Site(s.brokers, without(s.joins)) for name, s in kept.items()})


def _tree_without(file: NetworkFile, below: dict[str, tuple[str, ...]], name: str) -> TreeShape:
    children = below.get(name, ())
    above = [broker for broker, others in below.items() if name in others]
    if len(children) + len(above) > 1:
        beyond = ", ".join([*above, *children])
        raise _error(file, f"{name!r} connects {beyond}; removing it would split the network")
    kept = {
        broker: tuple(other for other in others if other != name)
        for broker, others in below.items()
        if broker != name
    }
    for child in children:
        kept.setdefault(child, ())
    return TreeShape({b: others for b, others in kept.items() if others} or dict.fromkeys(kept, ()))


def _mesh(file: NetworkFile, advice: str) -> MeshShape:
    if not isinstance(file.shape, MeshShape):
        raise _error(file, f"this network is a tree, not a mesh; {advice}")
    return file.shape


def _link(shape: MeshShape, one: str, other: str) -> tuple[str, str] | None:
    """The link between two brokers, as it is written."""
    return next((link for link in shape.links if ordered(*link) == ordered(one, other)), None)


def _mesh_without(file: NetworkFile, shape: MeshShape, name: str) -> MeshShape:
    parts = parts_without(near_over(shape.links), broker=name)
    if len(parts) > 1:
        apart = " | ".join(map(listed, parts))
        raise _error(
            file,
            f"removing {name!r} would split the network: {apart}; add links between them first",
        )
    links = tuple(link for link in shape.links if name not in link)
    if not links:
        raise _error(
            file, f"removing {name!r} would leave one broker, which is not a mesh; use [tree]"
        )
    return MeshShape(links, tuple(relay for relay in shape.relays if relay != name))


def _next(
    file: NetworkFile, shape: Shape, new: Iterable[str] = (), at: At | None = None
) -> NetworkFile:
    """The next revision, with this shape."""
    brokers = {**file.brokers, **{name: _settings(file, name, at) for name in new}}
    try:
        network = shape.network()
    except LocalError as error:
        raise _error(file, str(error)) from error
    _check_keepers(file, network)
    gone = [edge for edge in file.network.edges if edge not in network.edges]
    changed = replace(
        file,
        revision=file.revision + 1,
        left=(*file.left, *gone),
        shape=shape,
        network=network,
        brokers={name: brokers[name] for name in network.brokers},
    )
    try:
        return loads(dump(changed), file.path)
    except ConfigError as error:
        # Omit the line: it refers to generated text.
        raise ConfigError(error.message, path=file.path, key=error.key) from error


def _check_keepers(file: NetworkFile, network: Network) -> None:
    """Check that no broker leaves that is named as a keeper (rule 4)."""
    for origin in filter(file.brokers.__contains__, network.brokers):
        for keeper in file.brokers[origin].replication.keepers:
            if keeper not in network.brokers:
                raise _error(
                    file,
                    f"{keeper!r} keeps a copy of the stream of {origin!r}; name another broker in"
                    f" brokers.{origin}.keepers first, and apply that revision",
                )


def _settings(file: NetworkFile, name: str, at: At | None) -> BrokerSettings:
    if name in file.brokers:
        raise _error(file, f"broker {name!r} already exists; choose another name")
    place = At() if at is None else at
    state = place.state or file.path.absolute().parent / "state" / name
    return BrokerSettings(
        name=name,
        host=place.host,
        clients_port=place.clients,
        links_port=place.links,
        observe_port=place.observe,
        listen_host=place.listen or place.host,
        state=state.absolute(),
    )


def _error(file: NetworkFile, message: str) -> ConfigError:
    return ConfigError(message, path=file.path)
