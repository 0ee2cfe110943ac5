"""Bugs that are planted into a write stream, to show that power cuts find them.

Each is what a broker would have left behind that forgets a sync or gets an order wrong. The product
knows nothing of them: a plant takes the calls of a life that was recorded and returns other ones.
"""

from collections.abc import Callable, Sequence

from tests.power.write_stream import Call

#: A deletion comes this many commits too early: others may stand between it and the one that it
#: waits for.
_COMMITS_BETWEEN = 6
Plant = Callable[[Sequence[Call]], list[Call]]


def _names(calls: Sequence[Call]) -> dict[int, str]:
    """The first name of each file that was created. Inodes are used again only for other lives."""
    return {call.inode: call.text for call in calls if call.kind == "C"}


def _without_syncs(
    calls: Sequence[Call], is_left_out: Callable[[Call, str], bool], first: int = 0
) -> list[Call]:
    """The calls without some syncs, which are judged by their beginning and the file's name."""
    names = _names(calls)
    gone = {
        call.one
        for call in calls[first:]
        if call.kind == "B" and is_left_out(call, names.get(call.inode, ""))
    }
    return [call for call in calls if call.kind not in "BS" or call.one not in gone]


def _served(calls: Sequence[Call]) -> int:
    """The first call after the start: from there on there are clients."""
    return next(place for place, call in enumerate(calls) if call.kind == "N")


def log_is_not_synced(calls: Sequence[Call]) -> list[Call]:
    """No fdatasync of segments."""
    return _without_syncs(calls, lambda _call, name: name.endswith(".segment"), _served(calls))


def catalog_is_not_synced(calls: Sequence[Call]) -> list[Call]:
    """sqlite with `synchronous=OFF`."""
    return _without_syncs(calls, lambda _call, name: "catalog.sqlite" in name, _served(calls))


def names_of_segments_are_not_synced(calls: Sequence[Call]) -> list[Call]:
    """No fsync of the log's directory."""
    return _without_syncs(calls, lambda call, _name: call.text.endswith("/log"), _served(calls))


def names_above_are_not_synced(calls: Sequence[Call]) -> list[Call]:
    """No fsync of the directories above the one that holds the state directory."""
    above = ("lib", "")
    names = _names(calls)
    return _without_syncs(calls, lambda call, _name: call.inode not in names and call.text in above)


def identity_is_not_synced(calls: Sequence[Call]) -> list[Call]:
    """A rename over a file whose content is not on disk yet."""
    return _without_syncs(calls, lambda _call, name: name.endswith("identity.toml.new"))


def word_comes_before_the_sync(calls: Sequence[Call]) -> list[Call]:
    """What is told to clients goes out when the sync that it waits for begins."""
    found: list[Call] = []
    for call in calls:
        at = len(found)
        if call.kind == ">":
            # Not before what it answers.
            while at > 0 and found[at - 1].kind not in "N<>":
                at -= 1
            begins = [place for place in range(at, len(found)) if found[place].kind == "B"]
            at = begins[0] if begins else len(found)
        found.insert(at, call)
    return found


def catalog_comes_before_the_log(calls: Sequence[Call]) -> list[Call]:
    """The catalog takes over what the log holds before the log is synced."""
    names = _names(calls)
    served = _served(calls)
    found: list[Call] = [*calls[:served]]
    late: list[Call] = []
    for call in calls[served:]:
        name = names.get(call.inode, "")
        if call.kind in "BS" and name.endswith(".segment"):
            late.append(call)
            continue
        found.append(call)
        if call.kind == "S" and "catalog.sqlite" in name:
            found += late
            late.clear()
    return found + late


def deletion_comes_before_the_catalog(calls: Sequence[Call]) -> list[Call]:
    """Segments are deleted before the catalog has taken over what only their records told."""
    names = _names(calls)
    found: list[Call] = []
    for call in calls:
        at = len(found)
        if call.kind == "U" and call.text.endswith(".segment"):
            commits = [
                place
                for place, each in enumerate(found)
                if each.kind == "B" and "catalog.sqlite" in names.get(each.inode, "")
            ]
            at = commits[-_COMMITS_BETWEEN]
        found.insert(at, call)
    return found


PLANTS: tuple[Plant, ...] = (
    log_is_not_synced,
    catalog_is_not_synced,
    names_of_segments_are_not_synced,
    names_above_are_not_synced,
    identity_is_not_synced,
    word_comes_before_the_sync,
    catalog_comes_before_the_log,
    deletion_comes_before_the_catalog,
)
