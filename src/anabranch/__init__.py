"""Anabranch: content-based publish/subscribe that keeps its promises.

from anabranch import Event, Filter, MatchIndex, attr

What a program needs to talk to a network is here too (`connect`, `connect_blocking`, `embedded` and
the errors of `anabranch.client`). These names and `MatchIndex` are loaded on first use, so a
program that only parses filters loads neither sockets nor numpy.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from anabranch.model.errors import (
    AnabranchError,
    DuplicateIdError,
    EventError,
    FilterError,
    FilterLimitError,
    LocalError,
    PatternError,
    PatternLimitError,
    RemoteError,
    UnknownIdError,
)
from anabranch.model.event import Event
from anabranch.model.filter import Filter
from anabranch.model.language.builder import attr
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.pattern.pattern import Pattern

if TYPE_CHECKING:
    from anabranch.client.batches import Batch
    from anabranch.client.blocking import (
        BlockingClient,
        BlockingPatternSubscription,
        BlockingSubscription,
        connect_blocking,
    )
    from anabranch.client.client import Client, connect
    from anabranch.client.errors import (
        AttributeTypeError,
        BatchRefusedError,
        BatchUnknownError,
        ClientError,
        ClockError,
        ClosedError,
        ConnectError,
        FetchCutError,
        FetchRefusedError,
        NotAdvertisedError,
        PatternRefusedError,
        PatternUnknownError,
        PublishNotSentError,
        PublishRefusedError,
        PublishUnknownError,
        RequestTimeoutError,
        SubscriptionCutError,
        SubscriptionRefusedError,
        TicksNotKeptError,
        WithheldError,
    )
    from anabranch.client.options import ClientOptions
    from anabranch.client.patterns import Matched, PartEvent, PatternSubscription
    from anabranch.client.stream_reader import Fetcher
    from anabranch.client.subscription import OrderNotKept, Received, Subscription, Withheld
    from anabranch.devnet.embedded import Embedded, embedded
    from anabranch.matching.identities import Matches
    from anabranch.matching.index import MatchIndex

__version__ = "0.2.0"

#: Name → the module it is found in when somebody asks for it.
_LAZY = {
    **dict.fromkeys(
        ("BlockingClient", "BlockingSubscription", "connect_blocking"), "client.blocking"
    ),
    "BlockingPatternSubscription": "client.blocking",
    **dict.fromkeys(("Matched", "PartEvent"), "client.patterns"),
    "PatternSubscription": "client.patterns",
    "Batch": "client.batches",
    "Fetcher": "client.stream_reader",
    "Client": "client.client",
    "connect": "client.client",
    **dict.fromkeys(
        (
            "AttributeTypeError",
            "BatchRefusedError",
            "BatchUnknownError",
            "ClientError",
            "ClockError",
            "ClosedError",
            "ConnectError",
            "FetchCutError",
            "FetchRefusedError",
            "NotAdvertisedError",
            "PatternRefusedError",
            "PatternUnknownError",
            "PublishNotSentError",
            "PublishRefusedError",
            "PublishUnknownError",
            "RequestTimeoutError",
            "SubscriptionCutError",
            "SubscriptionRefusedError",
            "TicksNotKeptError",
            "WithheldError",
        ),
        "client.errors",
    ),
    "ClientOptions": "client.options",
    **dict.fromkeys(("OrderNotKept", "Received", "Withheld"), "client.subscription"),
    "Subscription": "client.subscription",
    **dict.fromkeys(("Embedded", "embedded"), "devnet.embedded"),
    "MatchIndex": "matching.index",
    "Matches": "matching.identities",
}

__all__ = [
    "DEFAULT_LIMITS",
    "AnabranchError",
    "AttributeTypeError",
    "Batch",
    "BatchRefusedError",
    "BatchUnknownError",
    "BlockingClient",
    "BlockingPatternSubscription",
    "BlockingSubscription",
    "Client",
    "ClientError",
    "ClientOptions",
    "ClockError",
    "ClosedError",
    "ConnectError",
    "DuplicateIdError",
    "Embedded",
    "Event",
    "EventError",
    "FetchCutError",
    "FetchRefusedError",
    "Fetcher",
    "Filter",
    "FilterError",
    "FilterLimitError",
    "Limits",
    "LocalError",
    "MatchIndex",
    "Matched",
    "Matches",
    "NotAdvertisedError",
    "OrderNotKept",
    "PartEvent",
    "Pattern",
    "PatternError",
    "PatternLimitError",
    "PatternRefusedError",
    "PatternSubscription",
    "PatternUnknownError",
    "PublishNotSentError",
    "PublishRefusedError",
    "PublishUnknownError",
    "Received",
    "RemoteError",
    "RequestTimeoutError",
    "Subscription",
    "SubscriptionCutError",
    "SubscriptionRefusedError",
    "TicksNotKeptError",
    "UnknownIdError",
    "Withheld",
    "WithheldError",
    "attr",
    "connect",
    "connect_blocking",
    "embedded",
]


if not TYPE_CHECKING:  # whoever checks types sees the names above, and no others

    def __getattr__(name: str) -> object:
        where = _LAZY.get(name)
        if where is None:
            # With the name and the module, Python suggests a similar name.
            problem = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(problem, name=name, obj=sys.modules[__name__])
        value = getattr(import_module(f"{__name__}.{where}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted(globals().keys() | set(__all__))
