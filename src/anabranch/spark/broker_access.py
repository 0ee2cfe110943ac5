"""Broker connections of drivers and tasks, created from the options of a query.

TLS contexts and sockets cannot be sent to a task, but options can. Each process therefore opens its
connections here. TLS files must have the same path on every machine.

1. Each connection has a unique client name that starts with the option `client`, because a broker
   keeps only the latest of two clients with the same name. As a consequence, addressed events are
   not read.
2. Once the network's name is known, a broker of another network is an error.

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
    """TLS argument for `connect` and `Fetcher`."""
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
    """The option that names the bad file."""
    texts = {"ca": options.ca, "certificate": options.certificate, "key": options.key}
    return next((name for name, text in texts.items() if Path(text) == error.path), "ca")


def client_name(options: Options, role: str) -> str:
    """A unique client name."""
    return f"{options.client or 'spark'}-{role}-{secrets.token_hex(6)}"


def fetcher(
    options: Options,
    stream: str = "",
    *,
    network: str = "",
    addresses: Sequence[str] = (),
    patience_s: float | None = None,
) -> Fetcher:
    """Connect to the origin of `stream`, or to the first broker that answers. `addresses` are tried
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
