"""A network file that is written and read again is the same."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.config.network_file import NetworkFile, dump, load, loads

EXAMPLES = Path(__file__).parents[3] / "src" / "anabranch" / "config" / "examples"
HOME = Path("/srv/networks/here.toml")
ELSEWHERE = Path("/srv/elsewhere/there.toml")


@st.composite
def trees(draw: st.DrawFn) -> str:
    """`[tree]` of a random tree."""
    count = draw(st.integers(1, 8))
    below: dict[str, list[str]] = {f"b{n}": [] for n in range(count)}
    for child in range(1, count):
        below[f"b{draw(st.integers(0, child - 1))}"].append(f"b{child}")
    return "[tree]\n" + "".join(f"{n} = {list_text(c)}\n" for n, c in below.items())


@st.composite
def sites(draw: st.DrawFn) -> str:
    """`[sites]` of a random tree of relay sites with edges at them."""
    count = draw(st.integers(1, 5))
    joins: dict[str, list[str]] = {f"s{n}": [] for n in range(count)}
    for child in range(1, count):
        joins[f"s{draw(st.integers(0, child - 1))}"].append(f"s{child}")
    brokers = {s: [f"{s}-{n}" for n in range(draw(st.integers(1, 3)))] for s in joins}
    for number in range(draw(st.integers(1, 4))):
        edge, above = f"e{number}", f"s{draw(st.integers(0, count - 1))}"
        if draw(st.booleans()):
            brokers[above].append(edge)  # a relay that has clients as well
        brokers[edge] = [edge]
        joins[edge] = [above]
    return "".join(
        f"[sites.{s}]\nbrokers = {list_text(brokers[s])}\njoins = {list_text(joins[s])}\n"
        for s in joins
    )


@st.composite
def meshes(draw: st.DrawFn) -> str:
    """`[mesh]` of a random connected graph."""
    count = draw(st.integers(2, 8))
    links = [(f"b{draw(st.integers(0, child - 1))}", f"b{child}") for child in range(1, count)]
    others = [(f"b{a}", f"b{b}") for b in range(count) for a in range(b)]
    for a, b in draw(st.lists(st.sampled_from(others), unique=True)):
        if (a, b) not in links:
            links.append((b, a) if draw(st.booleans()) else (a, b))
    names = [f"b{number}" for number in range(count - 1)]
    relays = draw(st.lists(st.sampled_from(names), unique=True))
    pairs = ", ".join(list_text(list(link)) for link in links)
    return f"[mesh]\nlinks = [{pairs}]\nrelays = {list_text(relays)}\n"


def list_text(names: list[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


SECONDS = st.floats(0.001, 1_000)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "retention": st.sampled_from(['"refuse"', '"lossy"']),
        "log_ticks_max": st.integers(1, 2**63 - 1),
        "mark_after_s": SECONDS,
        "head_every_s": SECONDS,
        "coarsen": st.sampled_from(["true", "false"]),
    },
)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "payload_bytes_max": st.integers(0, 1_000_000),
        "destinations_max": st.integers(0, 65_535),
        "frame_bytes_max": st.integers(16_000_000, 2**32 - 1),
    },
)
TLS = st.sampled_from(
    ["", "plaintext = true", 'ca = "ca.pem"\ncertificate = "{broker}.pem"\nkey = "../{broker}.k"']
)


@st.composite
def files(draw: st.DrawFn) -> NetworkFile:
    shape = draw(trees() | sites() | meshes())
    options = "".join(f"{k} = {v}\n" for k, v in draw(OPTIONS).items())
    chosen = draw(LIMITS)
    if "frame_bytes_max" in chosen:
        chosen["memory_bytes_max"] = 8 * chosen["frame_bytes_max"] + draw(st.integers(0, 9))
    limits = "".join(f"{k} = {v}\n" for k, v in chosen.items())
    routings = ["mesh"] if "[mesh]" in shape else ["tree", "flood", "mesh"]
    routing = draw(st.sampled_from(routings))
    head = f'[network]\nname = "n"\nrevision = {draw(st.integers(1, 9))}\nrouting = "{routing}"\n'
    text = f"{head}{shape}[options]\n{options}[limits]\n{limits}[tls]\n{draw(TLS)}\n"
    file = loads(text, HOME)
    if draw(st.booleans()):
        file = file.with_ports({key: 5000 + n for n, key in enumerate(file.unchosen_ports())})
    if draw(st.booleans()):
        file = file.with_state(Path(draw(st.sampled_from(["/var/a b", '/var/"q"', "/var/é\n"]))))
    return file


@given(files())
def test_a_written_file_loads_to_the_same_value_from_anywhere(file: NetworkFile) -> None:
    again = loads(dump(file), ELSEWHERE)
    assert again == file
    assert again.network.sites == file.network.sites
    assert again.network.brokers == file.network.brokers
    assert list(again.brokers) == list(file.brokers)


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.toml")))
def test_examples_survive_writing(name: str) -> None:
    file = load(EXAMPLES / name)
    assert loads(dump(file), ELSEWHERE) == file


def test_another_value_is_another_file() -> None:
    file = loads('[network]\nname = "n"\n[tree]\na = ["b"]\n', HOME)
    other = file.with_ports({("a", "links"): 4101})
    assert other != file
    assert loads(dump(other), HOME) != file


def test_hosts_are_written() -> None:
    text = """[network]
    name = "n"
    [tree]
    a = []
    [brokers.a]
    host = "a.example.org"
    listen = "0.0.0.0"
    observe_host = "::1"
    [tls]
    plaintext = true
    """
    settings = loads(dump(loads(text, HOME)), ELSEWHERE).brokers["a"]
    expected = {"host": "a.example.org", "listen_host": "0.0.0.0", "observe_host": "::1"}
    assert expected.items() <= msgspec.structs.asdict(settings).items()
