"""Brokers and links that hold a graph together, against trying each of them."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.config.survey import cuts, near_over, ordered, part_of, parts_without

Links = list[tuple[str, str]]


@st.composite
def connected(draw: st.DrawFn) -> Links:
    size = draw(st.integers(2, 9))
    names = [f"b{number}" for number in range(size)]
    links = {(names[draw(st.integers(0, n - 1))], names[n]) for n in range(1, size)}
    others = [pair for pair in combinations(names, 2) if pair not in links]
    more = draw(st.sets(st.sampled_from(others), max_size=5)) if others else set()
    return draw(st.permutations(sorted(links | more)))


def is_whole(names: list[str], links: Links) -> bool:
    """Whether these hang together: groups are merged until nothing changes."""
    groups = [{name} for name in names]
    for a, b in links:
        meeting = [group for group in groups if a in group or b in group]
        groups = [group for group in groups if group not in meeting] + [set().union(*meeting)]
    return len(groups) == 1


@given(connected())
def test_cuts_are_those_without_which_the_rest_falls_apart(links: Links) -> None:
    names = sorted({name for link in links for name in link})
    brokers, found = cuts(near_over(links))
    for name in names:
        rest = [link for link in links if name not in link]
        assert (name in brokers) != is_whole([n for n in names if n != name], rest)
    for link in links:
        rest = [other for other in links if other != link]
        assert (link in found) != is_whole(names, rest)
    assert len(set(brokers)) == len(brokers)
    assert len(set(found)) == len(found)


@given(connected())
def test_parts_are_whole_and_apart(links: Links) -> None:
    near = near_over(links)
    for name in near:
        parts = parts_without(near, broker=name)
        assert sorted(each for part in parts for each in part) == sorted(set(near) - {name})
        assert [len(part) for part in parts] == sorted(map(len, parts), reverse=True)
        rest = [link for link in links if name not in link]
        for part in parts:
            assert is_whole(part, [link for link in rest if set(link) <= set(part)])
            assert not any((link[0] in part) != (link[1] in part) for link in rest)


def test_a_long_chain_is_cut_everywhere_and_searched_without_recursion() -> None:
    links = [(f"b{n:04}", f"b{n + 1:04}") for n in range(3_000)]
    brokers, found = cuts(near_over(links))
    assert len(brokers) == 2_999
    assert sorted(found) == links


def test_a_link_is_the_same_whichever_end_is_named_first() -> None:
    near = near_over([("b", "a"), ("b", "c")])
    assert part_of(near, "a", link=("a", "b")) == part_of(near, "a", link=("b", "a")) == {"a"}
    assert ordered("b", "a") == ("a", "b")
