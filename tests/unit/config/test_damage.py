"""Whatever is done to a network file, it loads, or the error says where it is wrong."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from anabranch.config.errors import ConfigError
from anabranch.config.network_file import dump, load, loads

EXAMPLES = Path(__file__).parents[3] / "src" / "anabranch" / "config" / "examples"
PATH = Path("/srv/n.toml")
TEXTS = [path.read_text() for path in sorted(EXAMPLES.glob("*.toml"))]
#: Every table with something in it.
TEXTS += [dump(load(EXAMPLES / "pair.toml")) + "[tls]\nplaintext = true\n[limits]\n[options]\n"]
PIECES = ["", "0", "-1", "1e999", "nan", '"', "'", "[", "]", "{}", "=", "\n", ".", "a", '["a"]']
PIECES += ["true", "[[sites]]\n", "[brokers]\n", "é", "\x00", "#", "9" * 30, "1979-05-27"]


def complaint(text: str) -> ConfigError | None:
    try:
        loads(text, PATH)
    except ConfigError as error:
        return error
    return None


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """An example with some places replaced."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.integers(0, 12))
        text = text[:start] + draw(st.sampled_from(PIECES)) + text[end:]
    return text


@given(damaged())
def test_damaged_file_loads_or_is_told_with_a_line(text: str) -> None:
    error = complaint(text)
    assert error is None or 1 <= error.line <= text.count("\n") + 1


VALUES = st.sampled_from(
    ["1", "-1", "1.5", "true", '"x"', "[]", '["a", 1]', '[["a", "b"]]', "{ a = 1 }", "nan"]
)
NAMES = (
    "network network.name tree tree.a sites sites.a sites.a.brokers brokers brokers.a tls tls.ca"
    " mesh mesh.links mesh.relays"
)
NAMES += " brokers.a.host brokers.a.state limits limits.frame_bytes_max options options.retention"
KEYS = st.sampled_from(NAMES.split())


@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_value_of_any_kind_anywhere_is_told_with_its_key(pairs: dict[str, str]) -> None:
    error = complaint("".join(f"{key} = {value}\n" for key, value in pairs.items()))
    assert error is None or error.key or "not valid TOML" in error.message
