"""What brokers of the generic model know, and the conditions of changes on what they know.

A broker knows subscriptions (S) and which of them have ended (S̄); both only grow. A condition asks
for what is *active*, in S and not in S̄. There are two forms, and `generic` says what each kind is
for. Subscriptions that join later, where their witness is, join wherever S is written down.
"""

from typing import NamedTuple

from anabranch.model.normal.conjunction import Conjunction


class Subscription(NamedTuple):
    """A name that is never used twice, the edge it is at, and what it wants."""

    name: str
    edge: str
    conjunctions: tuple[Conjunction, ...]


class Known:
    """A pair of S and S̄."""

    def __init__(self) -> None:
        self.subscribed: dict[str, Subscription] = {}
        self.ended: dict[str, None] = {}

    def copy(self) -> "Known":
        return Known().add(self)

    def add(self, other: "Known") -> "Known":
        self.subscribed.update(other.subscribed)
        self.ended.update(other.ended)
        return self

    def minus(self, other: "Known") -> "Known":
        """What is here and not there. What is new and has ended is both."""
        result = Known()
        result.subscribed = {n: s for n, s in self.subscribed.items() if n not in other.subscribed}
        result.ended = {
            n: None for n in self.ended if n not in other.ended or n in result.subscribed
        }
        return result

    def is_within(self, other: "Known") -> bool:
        return all(n in other.subscribed for n in self.subscribed) and all(
            n in other.ended for n in self.ended
        )

    def active(self) -> dict[str, Subscription]:
        return {name: s for name, s in self.subscribed.items() if name not in self.ended}

    def join(self, subscription: Subscription, witness: str) -> bool:
        """Rule 5; whether it joined."""
        if witness in self.subscribed:
            self.subscribed[subscription.name] = subscription
            return True
        return False


class Some(NamedTuple):
    """Conditions I, III and IV: one of these subscriptions is active."""

    kind: str
    names: tuple[str, ...]

    def holds(self, known: Known) -> bool:
        return any(name in known.subscribed and name not in known.ended for name in self.names)

    def join(self, subscription: Subscription, witness: str) -> None:
        """One more could only make it weaker."""


class Only(NamedTuple):
    """Condition II: of these edges, nothing is active but what is active in `known`."""

    kind: str
    edges: frozenset[str]
    known: Known

    def holds(self, known: Known) -> bool:
        allowed = self.known.active()
        return all(
            name in allowed for name, each in known.active().items() if each.edge in self.edges
        )

    def join(self, subscription: Subscription, witness: str) -> None:
        self.known.join(subscription, witness)


Condition = Some | Only
