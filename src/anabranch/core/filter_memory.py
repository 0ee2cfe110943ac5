"""Memory quotas for the filters of clients.

Subscriptions, advertisements and patterns are filters, and a broker holds them for as long as their
clients want. Each filter is charged with an estimate of its bytes (`model.normal.memory_cost`), to
its client and to the broker.

Rules

1. All filters together may take `subscriptions_bytes_max`, those of one client
   `client_subscriptions_bytes_max`. A filter that would exceed either quota is refused, and the
   refusal names the quota.
2. Accepted filters are kept: subscriptions and patterns in the catalog are charged at a start and
   never refused. While they exceed a quota, no new filter is accepted.
3. An attribute name counts once for the broker, regardless of the number of filters that use it,
   and once for each client that uses it.
4. A pattern is charged to the client that defined it, together with the subscription of its join
   point. That subscription is not charged again.
5. A client without a name, as in old records, has no quota; its filters count for the broker only.

State: sums, rebuilt from the filters that are charged at a start.
"""

from anabranch.model.limits import Limits
from anabranch.model.normal.memory_cost import NAME_BYTES, FilterCost

_REMEDY = "end subscriptions, drop patterns or advertise less, or use smaller filters"


class _Account:
    """The charges of the broker, or of one client."""

    __slots__ = ("bytes", "charges", "names")

    def __init__(self) -> None:
        self.bytes = 0
        self.charges = 0
        #: Attribute → number of charges that use it, at least one.
        self.names: dict[str, int] = {}

    def total_with(self, cost: FilterCost) -> int:
        """The total after this charge."""
        new_names = sum(name not in self.names for name in cost.names)
        return self.bytes + cost.bytes + NAME_BYTES * new_names

    def charge(self, cost: FilterCost) -> None:
        self.bytes = self.total_with(cost)
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
        #: Clients with at least one charge.
        self._clients: dict[str, _Account] = {}

    @property
    def used(self) -> int:
        return self._all.bytes

    def used_by(self, client: str) -> int:
        account = self._clients.get(client)
        return 0 if account is None else account.bytes

    def refusal(self, client: str, cost: FilterCost) -> str:
        """Why a charge to a client is refused; "" if it is not (rule 1)."""
        account, limits = self._clients.get(client) or _Account(), self._limits
        quota = limits.client_subscriptions_bytes_max
        if client and account.total_with(cost) > quota:
            more = account.total_with(cost) - account.bytes
            return (
                f"the filters of client {client!r} take about {account.bytes} bytes of this"
                f" broker's memory; {more} more for this one would exceed its quota of"
                f" {quota} (client_subscriptions_bytes_max); {_REMEDY}"
            )
        total, bytes_max = self._all, limits.subscriptions_bytes_max
        if total.total_with(cost) > bytes_max:
            more = total.total_with(cost) - total.bytes
            return (
                f"the filters of all clients take about {total.bytes} bytes of this broker's"
                f" memory; {more} more for this one would exceed the limit of {bytes_max}"
                f" (subscriptions_bytes_max); {_REMEDY}, or use another broker"
            )
        return ""

    def charge(self, client: str, cost: FilterCost) -> None:
        """Charge a filter. Callers that may refuse it call `refusal` first."""
        self._all.charge(cost)
        if client:
            self._clients.setdefault(client, _Account()).charge(cost)

    def release(self, client: str, cost: FilterCost) -> None:
        self._all.release(cost)
        if not client:
            return
        account = self._clients[client]
        account.release(cost)
        if not account.charges:
            del self._clients[client]
