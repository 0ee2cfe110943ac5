"""Bugs that are planted into a write stream, to show that power cuts find them.

Each is what a broker would have left behind that forgets a sync or gets an order wrong. The product
knows nothing of them: a plant takes the calls of a life that was recorded and returns other ones.
"""

from collections.abc import Callable, Sequence

from tests.power.write_stream import Call

Plant = Callable[[Sequence[Call]], list[Call]]


def _names(calls: Sequence[Call]) -> dict[int, str]:
    """The first name of each file that was created. Inodes are used again only for other lives."""
    return {call.inode: call.text for call in calls if call.kind == "C"}


def _without_syncs(calls: Sequence[Call], is_left_out: Callable[[Call, str], bool]) -> list[Call]:
    """The calls without some syncs, which are judged by their beginning and the file's name."""
    names = _names(calls)
    gone = {
        call.one
        for call in calls
        if call.kind == "B" and is_left_out(call, names.get(call.inode, ""))
    }
    return [call for call in calls if call.kind not in "BS" or call.one not in gone]


def log_is_not_synced(calls: Sequence[Call]) -> list[Call]:
    """No fdatasync of segments."""
    return _without_syncs(calls, lambda _call, name: name.endswith(".segment"))


def catalog_is_not_synced(calls: Sequence[Call]) -> list[Call]:
    """sqlite with `synchronous=OFF`."""
    return _without_syncs(calls, lambda _call, name: "catalog.sqlite" in name)


def names_of_segments_are_not_synced(calls: Sequence[Call]) -> list[Call]:
    """No fsync of the log's directory."""
    return _without_syncs(calls, lambda call, _name: call.text.endswith("/log"))


def names_above_are_not_synced(calls: Sequence[Call]) -> list[Call]:
    """No fsync of the directories above the one that holds the state directory."""
    above = ("lib", "")
    names = _names(calls)
    return _without_syncs(
        calls, lambda call, _name: call.inode not in names and call.text in above
    )


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
    found: list[Call] = []
    late: list[Call] = []
    for call in calls:
        name = names.get(call.inode, "")
        if call.kind in "BS" and name.endswith(".segment"):
            late.append(call)
            continue
        found.append(call)
        if call.kind == "S" and "catalog.sqlite" in name:
            found += late
            late.clear()
    return found + late


PLANTS: tuple[Plant, ...] = (
    log_is_not_synced,
    catalog_is_not_synced,
    names_of_segments_are_not_synced,
    names_above_are_not_synced,
    identity_is_not_synced,
    word_comes_before_the_sync,
    catalog_comes_before_the_log,
)
