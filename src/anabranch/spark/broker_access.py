"""How tasks and drivers of a query reach brokers, by what its options say.

Contexts and sockets cannot be sent to a task; options can. So whoever needs a connection makes it
here, where it is used. Files for TLS have to be at the same place on every machine.

1. Every connection has a name of its own, that begins with the option `client`: of two clients with
   one name at a broker the later one stays. So events that are addressed to clients are not read.
2. A network is known by its name once it has been met; a broker of another one is an error.

This module keeps no state.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path
from ssl import SSLContext
from typing import Literal

from anabranch.client.stream_reader import Fetcher
from anabranch.config.errors import ConfigError
from anabranch.config.tls import client_context
from anabranch.spark.options import OptionError, Options

Tls = SSLContext | Literal[False] | None


def tls_of(options: Options) -> Tls:
    """What `connect` and `Fetcher` want to know about TLS."""
    if options.plaintext:
        return False
    if not options.ca:
        return None
    certificate = Path(options.certificate) if options.certificate else None
    key = Path(options.key) if options.key else None
    try:
        return client_context(Path(options.ca), certificate, key)
    except ConfigError as error:
        raise OptionError(_option_of(options, error), str(error)) from error


def _option_of(options: Options, error: ConfigError) -> str:
    """Which option a bad file is from."""
    texts = {"ca": options.ca, "certificate": options.certificate, "key": options.key}
    return next((name for name, text in texts.items() if Path(text) == error.path), "ca")


def client_name(options: Options, role: str) -> str:
    """A name that no other connection has."""
    return f"{options.client or 'spark'}-{role}-{secrets.token_hex(6)}"


def fetcher(
    options: Options,
    stream: str = "",
    *,
    network: str = "",
    addresses: Sequence[str] = (),
    patience_s: float | None = None,
) -> Fetcher:
    """A reader of one stream, or of that of the first broker that answers. `addresses` are tried
    before those of the options."""
    return Fetcher(
        *addresses,
        *options.brokers,
        stream=stream,
        name=client_name(options, "reader"),
        network=network,
        tls=tls_of(options),
        patience_s=options.patience_s if patience_s is None else patience_s,
    )
