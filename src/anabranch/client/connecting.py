"""How an application gets a client: `connect`.

Everything that can be seen to be wrong without asking anybody (an address, a name, a state
directory that is in use, plaintext to another machine) is a `LocalError` at once; that no broker
answers is a `ConnectError` after `connect_within_s`.
"""

import secrets
import ssl
from pathlib import Path
from typing import Literal

from anabranch.client.addresses import parse_address
from anabranch.client.client import Client
from anabranch.client.dialling import Tls, check_tls
from anabranch.client.errors import ClosedError
from anabranch.client.options import DEFAULT_OPTIONS, ClientOptions
from anabranch.client.roaming import Roaming
from anabranch.client.state import State
from anabranch.client.tracing import Trace
from anabranch.config.tls import client_context
from anabranch.model.errors import LocalError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_name


async def connect(
    *addresses: str,
    name: str | None = None,
    network: str = "",
    tls: ssl.SSLContext | str | Path | Literal[False] | None = None,
    state: str | Path | None = None,
    trace: str | Path | None = None,
    options: ClientOptions = DEFAULT_OPTIONS,
    limits: Limits = DEFAULT_LIMITS,
) -> Client:
    """Connect to a network through any of these brokers; returns when one of them has answered.

    addresses   where brokers listen for clients, as host:port; the client moves when one dies
    name        unique in the network; needed for durable subscriptions
    network     the network that must be met there; "" takes any
    tls         a context, or the file with the certificate of the network's authority; needed if a
                broker is on another machine, unless False says that anybody may read along
    state       a directory in which the client remembers where it was when it starts again
    trace       a file to which everything the client was told is appended, for the checker
    """
    if not addresses:
        raise LocalError("give the address of at least one broker, such as 127.0.0.1:4100")
    parsed = list(dict.fromkeys(parse_address(text) for text in addresses))
    context: Tls = client_context(Path(tls)) if isinstance(tls, str | Path) else tls
    check_tls(parsed, context)
    default_name = f"anonymous-{secrets.token_hex(8)}"
    if name is not None:
        check_name(name, "name", limits.name_bytes_max)
    kept = None if state is None else State(Path(state), name, default_name)
    own_name = kept.name if kept is not None else (name or default_name)
    written = None
    try:
        written = None if trace is None else Trace(Path(trace))
        roaming = Roaming(
            parsed, name=own_name, network=network, tls=context, options=options, limits=limits
        )
        is_named = name is not None or kept is not None
        client = Client(
            roaming, own_name, is_named, options=options, limits=limits, state=kept, trace=written
        )
    except BaseException:
        if kept is not None:
            kept.close()
        raise
    roaming.begin(client, client)
    try:
        await roaming.wait_for_home(options.connect_within_s)
    except BaseException as error:
        client.abandon(ClosedError(str(error)))
        raise
    return client
