"""TLS between brokers, and between brokers and clients: which files, which contexts, who is who.

A network has a certificate authority of its own. Each broker has a certificate signed by it, with
the broker's name among its DNS names. Rules:

1. TLS 1.3 and nothing older.
2. On a link both sides show a certificate and check the other's against the authority; then
   `check_peer` compares the name in it with the broker it should be. Hosts do not matter: a broker
   may move.
3. A client checks the broker's certificate against the authority, and its host. A client may show a
   certificate; if it does, that must be signed by the authority too.
4. Files are read when a context is made. An error says which of them is missing or does not fit.

`rehearse` makes a broker's two ends of a link shake hands in memory, so that an expired or foreign
certificate is noticed at the start and not by the neighbours.
"""

import ssl
from pathlib import Path
from typing import NoReturn

import msgspec

from anabranch.config.errors import ConfigError
from anabranch.model.errors import RemoteError

#: Stands for the broker's name in the paths of certificates and keys.
BROKER = "{broker}"
_ADVICE = "`anabranch network certificates` makes files for trials"


class TlsFiles(msgspec.Struct, frozen=True):
    """Where certificates and keys are; all paths absolute."""

    ca: Path
    #: With `{broker}` in them.
    certificate: str
    key: str

    def certificate_of(self, broker: str) -> Path:
        """The certificate of a broker."""
        return Path(self.certificate.replace(BROKER, broker))

    def key_of(self, broker: str) -> Path:
        """The private key of a broker."""
        return Path(self.key.replace(BROKER, broker))


# -- contexts ------------------------------------------------------------------------------------


def links_server_context(files: TlsFiles, broker: str) -> ssl.SSLContext:
    """For a broker that is dialled by another one."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, files.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    _load_own(context, files.certificate_of(broker), files.key_of(broker))
    return context


def links_client_context(files: TlsFiles, broker: str) -> ssl.SSLContext:
    """For a broker that dials another one; the name is checked by `check_peer`."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, files.ca)
    context.check_hostname = False
    _load_own(context, files.certificate_of(broker), files.key_of(broker))
    return context


def clients_server_context(files: TlsFiles, broker: str) -> ssl.SSLContext:
    """For a broker that is dialled by a client."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, files.ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    _load_own(context, files.certificate_of(broker), files.key_of(broker))
    return context


def client_context(
    ca: Path, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """For a client that dials a broker, with a certificate of its own or without."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, ca)
    if certificate is not None:
        _load_own(context, certificate, certificate if key is None else key)
    return context


def _context(protocol: int, ca: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _check_readable(ca, "certificate of the authority")
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise ConfigError(f"holds no certificate in PEM form ({_reason(error)})", path=ca) from None
    return context


def _load_own(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    _check_readable(certificate, "certificate")
    _check_readable(key, "private key")
    try:
        context.load_cert_chain(certificate, key, password=lambda: _refuse_password(key))
    except ssl.SSLError as error:
        raise _unfit(certificate, key, error) from None


def _refuse_password(key: Path) -> NoReturn:
    # Without this, the library would ask at the terminal and a broker would hang there.
    raise ConfigError("the private key is encrypted; store it without a password", path=key)


def _check_readable(path: Path, what: str) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        message = f"the {what} cannot be read: {reason}; {_ADVICE}"
        raise ConfigError(message, path=path) from None


def _unfit(certificate: Path, key: Path, error: ssl.SSLError) -> ConfigError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return ConfigError(f"the private key does not fit the certificate {certificate}", path=key)
    if b"-----BEGIN CERTIFICATE-----" not in certificate.read_bytes():
        return ConfigError("holds no certificate in PEM form", path=certificate)
    if b"PRIVATE KEY-----" not in key.read_bytes():
        return ConfigError("holds no private key in PEM form", path=key)
    return ConfigError(f"cannot be used with key {key}: {_reason(error)}", path=certificate)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


# -- who is who ----------------------------------------------------------------------------------


def peer_names(connection: ssl.SSLObject | ssl.SSLSocket) -> set[str]:
    """The names in the other side's certificate: its DNS names, or its common name without them.

    Empty if it showed none."""
    shown = connection.getpeercert() or {}
    names = {str(name) for kind, name in _pairs(shown.get("subjectAltName")) if kind == "DNS"}
    if names:
        return names
    subject = shown.get("subject")
    groups = subject if isinstance(subject, tuple) else ()
    return {str(name) for group in groups for kind, name in _pairs(group) if kind == "commonName"}


def check_peer(connection: ssl.SSLObject | ssl.SSLSocket, broker: str) -> None:
    """The other side is this broker, as far as its certificate goes."""
    names = peer_names(connection)
    if broker not in names:
        shown = ", ".join(sorted(names)) or "nobody"
        raise RemoteError(f"the certificate is made out to {shown}, not to broker {broker!r}")


def _pairs(value: object) -> list[tuple[object, object]]:
    entries = value if isinstance(value, tuple) else ()
    return [entry for entry in entries if isinstance(entry, tuple) and len(entry) == 2]


# -- rehearsal -----------------------------------------------------------------------------------


def rehearse(files: TlsFiles, broker: str) -> None:
    """Check that this broker's files will be accepted by the others."""
    certificate = files.certificate_of(broker)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = links_server_context(files, broker).wrap_bio(to_server, to_client, server_side=True)
    client = links_client_context(files, broker).wrap_bio(to_client, to_server)
    try:
        # TLS 1.3 needs two flights of the client; twice that is ample.
        for _ in range(4):
            _step(client)
            _step(server)
    except ssl.SSLCertVerificationError as error:
        message = f"not accepted by the authority {files.ca}: {error.verify_message}"
        raise ConfigError(message, path=certificate) from None
    except ssl.SSLError as error:
        raise ConfigError(f"cannot be used: {_reason(error)}", path=certificate) from None
    try:
        check_peer(client, broker)
    except RemoteError as error:
        raise ConfigError(str(error), path=certificate) from None


def _step(side: ssl.SSLObject) -> None:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return
