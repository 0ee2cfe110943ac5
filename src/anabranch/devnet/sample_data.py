"""A stock-quote workload: prices that wander, symbols that are not equally popular.

The same seed gives the same quotes. Whoever wants only those that match a filter gets these, in
the same order; a filter that next to no quote matches is refused. State kept: the price of each
symbol, worth nothing.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from random import Random

from anabranch.config.network_file import NetworkFile, load, loads
from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.model.filter import Filter

SYMBOLS = ("ACME", "BOLT", "CRUX", "DUNE", "ECHO", "FLUX", "GLOW", "HALO", "IRIS", "JADE")
EXCHANGES = ("AMS", "LON", "NYC", "TYO")
_WEIGHTS = tuple(1 / rank for rank in range(1, len(SYMBOLS) + 1))
_PRICE_LOW, _PRICE_HIGH = 5.0, 500.0
#: Quotes that are looked at for one that matches.
_DRAWS_MAX = 10_000


class Quotes:
    """An endless row of quotes."""

    def __init__(self, seed: int, among: Sequence[Filter] = ()) -> None:
        """`among`: every quote matches one of these; without any it may be anything."""
        self._among = tuple(among)
        self._chance = Random(seed)
        self._prices = {symbol: self._chance.uniform(20.0, 200.0) for symbol in SYMBOLS}

    def draw(self) -> dict[str, Value]:
        """The next quote."""
        for _ in range(_DRAWS_MAX):
            quote = self._next()
            if not self._among or any(filter.matches(quote) for filter in self._among):
                return quote
        raise LocalError(f"of {_DRAWS_MAX:,} quotes none matches what was asked for")

    def _next(self) -> dict[str, Value]:
        chance = self._chance
        symbol = chance.choices(SYMBOLS, _WEIGHTS)[0]
        before = self._prices[symbol]
        moved = before * (1 + chance.gauss(0.0, 0.01))
        price = round(min(max(moved, _PRICE_LOW), _PRICE_HIGH), 2)
        self._prices[symbol] = price
        return {
            "symbol": symbol,
            "exchange": chance.choice(EXCHANGES),
            "price": price,
            "change": round(price - before, 2),
            "volume": chance.randint(1, 1_000) * 100,
        }


# Which network is meant: a file, or the name of a shape.
#
#
# A name without a dot and without a directory is a shape; a file of that name is meant with `./`.
# This module keeps no state.


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
