"""A stock-quote workload: prices that wander, symbols that are not equally popular.

The same seed gives the same quotes. State kept: the price of each symbol, worth nothing.
"""

from random import Random

from anabranch.model.values import Value

SYMBOLS = ("ACME", "BOLT", "CRUX", "DUNE", "ECHO", "FLUX", "GLOW", "HALO", "IRIS", "JADE")
EXCHANGES = ("AMS", "LON", "NYC", "TYO")
_WEIGHTS = tuple(1 / rank for rank in range(1, len(SYMBOLS) + 1))
_PRICE_LOW, _PRICE_HIGH = 5.0, 500.0


class Quotes:
    """An endless row of quotes."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._prices = {symbol: self._chance.uniform(20.0, 200.0) for symbol in SYMBOLS}

    def draw(self) -> dict[str, Value]:
        """The next quote."""
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
