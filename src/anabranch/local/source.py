"""Which network is meant: a file, or the name of a shape.

    network_from("quotes.toml")   the network of a file
    network_from("redundant")     one of the shapes that `anabranch network new` writes

A name without a dot and without a directory is a shape; a file of that name is meant with `./`.
This module keeps no state.
"""

from importlib import resources
from pathlib import Path

from anabranch.config.network_file import NetworkFile, load, loads
from anabranch.model.errors import LocalError

_SUFFIX = ".toml"


def shapes() -> tuple[str, ...]:
    """The names of all shapes."""
    found = (resources.files("anabranch.config") / "examples").iterdir()
    names = (file.name for file in found)
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


def network_from(what: str | Path) -> NetworkFile:
    """The network that is meant; an error says what there is."""
    text = str(what)
    if isinstance(what, str) and text in shapes():
        place = resources.files("anabranch.config") / "examples" / f"{text}{_SUFFIX}"
        return loads(place.read_text(encoding="utf-8"), Path(f"{text}{_SUFFIX}"))
    path = Path(text)
    if not path.exists():
        raise LocalError(
            f"{text} is neither a file nor a shape; the shapes are {', '.join(shapes())}"
        )
    return load(path)
