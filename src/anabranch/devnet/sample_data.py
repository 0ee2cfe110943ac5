"""Sample data: a stock-quote workload, and example networks by name.

Prices follow a random walk, and symbols have different popularity. The same seed gives the same
quotes. With filters, only matching quotes are drawn, in the same order; a filter that hardly any
quote matches is an error. State: the price of each symbol, which may be lost.

A network is given by a file or by the name of a shape. A name without a dot and without a directory
is a shape; write `./` before a file of that name.
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
#: Maximum number of quotes drawn to find one that matches.
_DRAWS_MAX = 10_000


class Quotes:
    """An endless sequence of quotes."""

    def __init__(self, seed: int, among: Sequence[Filter] = ()) -> None:
        """`among`: every quote matches one of these filters; empty: any quote."""
        self._among = tuple(among)
        self._chance = Random(seed)
        self._prices = {symbol: self._chance.uniform(20.0, 200.0) for symbol in SYMBOLS}

    def draw(self) -> dict[str, Value]:
        for _ in range(_DRAWS_MAX):
            quote = self._next()
            if not self._among or any(filter.matches(quote) for filter in self._among):
                return quote
        raise LocalError(f"none of {_DRAWS_MAX:,} quotes matches the filters; widen them")

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


_SUFFIX = ".toml"


def shapes() -> tuple[str, ...]:
    """The names of all shapes."""
    found = (resources.files("anabranch.config") / "examples").iterdir()
    names = (file.name for file in found)
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


def network_from(what: str | Path) -> NetworkFile:
    """Load the network of a file or of a shape."""
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
