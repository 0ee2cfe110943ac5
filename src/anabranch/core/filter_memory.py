"""What filters of clients make one broker hold in memory, and when it takes no more.

Subscriptions, advertisements and patterns are filters, and a broker holds them as long as their
clients want. Each is charged with an estimate of its bytes (`model.normal.memory_cost`), to the
client and to the broker. Rules:

1. All filters may come to `subscriptions_bytes_max`, those of one client to
   `client_subscriptions_bytes_max`. What would exceed either is refused, and the refusal names the
   quota.
2. What was promised is held: subscriptions and patterns of the catalog are charged at a start, and
   never refused. While they exceed a quota, nothing new is taken.
3. An attribute name counts once for the broker, however many filters use it, and once for each
   client that uses it.
4. A pattern is charged to the client that defined it, with the subscription of its join point. That
   subscription is not charged again.
5. A client without a name, as in old records, has no quota; its filters count for the broker.

State: sums, made again from what is charged.
"""

from anabranch.model.limits import Limits
from anabranch.model.normal.memory_cost import NAME_BYTES, FilterCost

_REMEDY = "end subscriptions, drop patterns or advertise less, or use smaller filters"


class _Account:
    """What is charged to the broker, or to one client."""

    __slots__ = ("bytes", "charges", "names")

    def __init__(self) -> None:
        self.bytes = 0
        self.charges = 0
        #: Attribute → the charges that name it, at least one.
        self.names: dict[str, int] = {}

    def with_more(self, cost: FilterCost) -> int:
        """The bytes that there would be."""
        fresh = sum(name not in self.names for name in cost.names)
        return self.bytes + cost.bytes + NAME_BYTES * fresh

    def charge(self, cost: FilterCost) -> None:
        self.bytes = self.with_more(cost)
        self.charges += 1
        for name in cost.names:
            self.names[name] = self.names.get(name, 0) + 1

    def release(self, cost: FilterCost) -> None:
        self.charges -= 1
        self.bytes -= cost.bytes
        for name in cost.names:
            left = self.names[name] - 1
            if left:
                self.names[name] = left
            else:
                del self.names[name]
                self.bytes -= NAME_BYTES
        assert self.bytes >= 0, "more was released than charged"


class FilterMemory:
    """The accounts of one broker. See the rules at the top of this module."""

    __slots__ = ("_all", "_clients", "_limits")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._all = _Account()
        #: Those to whom something is charged.
        self._clients: dict[str, _Account] = {}

    @property
    def used(self) -> int:
        """The bytes of all that is charged."""
        return self._all.bytes

    def used_by(self, client: str) -> int:
        """The bytes that are charged to a client."""
        account = self._clients.get(client)
        return 0 if account is None else account.bytes

    def objection(self, client: str, cost: FilterCost) -> str:
        """Why this cannot be charged to a client; "" if it can (rule 1)."""
        account, limits = self._clients.get(client) or _Account(), self._limits
        quota = limits.client_subscriptions_bytes_max
        if client and account.with_more(cost) > quota:
            more = account.with_more(cost) - account.bytes
            return (
                f"the filters of client {client!r} take about {account.bytes} bytes of this"
                f" broker's memory, and with this, {more} more, they would exceed its quota of"
                f" {quota} (client_subscriptions_bytes_max); {_REMEDY}"
            )
        total, bytes_max = self._all, limits.subscriptions_bytes_max
        if total.with_more(cost) > bytes_max:
            more = total.with_more(cost) - total.bytes
            return (
                f"the filters of all clients take about {total.bytes} bytes of this broker's"
                f" memory, and with this, {more} more, they would exceed {bytes_max}"
                f" (subscriptions_bytes_max); {_REMEDY}, or go to another broker"
            )
        return ""

    def charge(self, client: str, cost: FilterCost) -> None:
        """This is held from now on; whoever need not hold it asks `objection` before."""
        self._all.charge(cost)
        if client:
            self._clients.setdefault(client, _Account()).charge(cost)

    def release(self, client: str, cost: FilterCost) -> None:
        """What was charged is not held any more."""
        self._all.release(cost)
        if not client:
            return
        account = self._clients[client]
        account.release(cost)
        if not account.charges:
            del self._clients[client]
