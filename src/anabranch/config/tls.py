"""TLS between brokers, and between brokers and clients: files, contexts and peer verification.

Each network has its own certificate authority (CA). Each broker has a certificate signed by the CA,
with the broker's name among its DNS names.

Rules

1. TLS 1.3 is the minimum version.
2. On a link both sides present a certificate and verify the other's against the CA; then
   `check_peer` compares its name with the expected broker. Host names are not checked: a broker may
   move.
3. A client verifies the broker's certificate against the CA, and its host name. A client may
   present a certificate, which must then be signed by the CA too.
4. Files are read when a context is created. An error names the file that is missing or invalid.

`rehearse` performs a handshake between both ends of a link in memory, so that the broker itself
detects an expired or foreign certificate at start, before its neighbours do.
"""

import ssl
from pathlib import Path
from typing import NoReturn

import msgspec

from anabranch.config.errors import ConfigError
from anabranch.model.errors import RemoteError

#: Stands for the broker's name in the paths of certificates and keys.
BROKER = "{broker}"
_ADVICE = "`anabranch network certificates` creates files for trials"


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of certificates and keys, all absolute."""

    ca: Path
    #: With `{broker}` in them.
    certificate: str
    key: str

    def certificate_of(self, broker: str) -> Path:
        return Path(self.certificate.replace(BROKER, broker))

    def key_of(self, broker: str) -> Path:
        return Path(self.key.replace(BROKER, broker))


# -- contexts ------------------------------------------------------------------------------------


def links_server_context(files: TlsFiles, broker: str) -> ssl.SSLContext:
    """For a broker that accepts a link."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, files.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    _load_own(context, files.certificate_of(broker), files.key_of(broker))
    return context


def links_client_context(files: TlsFiles, broker: str) -> ssl.SSLContext:
    """For a broker that opens a link; `check_peer` verifies the name."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, files.ca)
    context.check_hostname = False
    _load_own(context, files.certificate_of(broker), files.key_of(broker))
    return context


def clients_server_context(files: TlsFiles, broker: str) -> ssl.SSLContext:
    """For a broker that accepts clients."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, files.ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    _load_own(context, files.certificate_of(broker), files.key_of(broker))
    return context


def client_context(
    ca: Path, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """For a client, with or without its own certificate."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, ca)
    if certificate is not None:
        _load_own(context, certificate, certificate if key is None else key)
    return context


def _context(protocol: int, ca: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _check_readable(ca, "CA certificate")
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise ConfigError(f"contains no PEM certificate ({_reason(error)})", path=ca) from None
    return context


def _load_own(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    _check_readable(certificate, "certificate")
    _check_readable(key, "private key")
    try:
        context.load_cert_chain(certificate, key, password=lambda: _refuse_password(key))
    except ssl.SSLError as error:
        raise _invalid(certificate, key, error) from None


def _refuse_password(key: Path) -> NoReturn:
    # Otherwise the library would prompt at the terminal, and the broker would hang.
    raise ConfigError("the private key is encrypted; store it without a password", path=key)


def _check_readable(path: Path, what: str) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        message = f"the {what} cannot be read: {reason}; {_ADVICE}"
        raise ConfigError(message, path=path) from None


def _invalid(certificate: Path, key: Path, error: ssl.SSLError) -> ConfigError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return ConfigError(
            f"the private key does not match the certificate {certificate}", path=key
        )
    if b"-----BEGIN CERTIFICATE-----" not in certificate.read_bytes():
        return ConfigError("contains no PEM certificate", path=certificate)
    if b"PRIVATE KEY-----" not in key.read_bytes():
        return ConfigError("contains no PEM private key", path=key)
    return ConfigError(f"cannot be used with key {key}: {_reason(error)}", path=certificate)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


# -- peers ---------------------------------------------------------------------------------------


def peer_names(connection: ssl.SSLObject | ssl.SSLSocket) -> set[str]:
    """The names in the peer's certificate: its DNS names, or its common name if it has none.

    Empty if the peer presented no certificate."""
    shown = connection.getpeercert() or {}
    names = {str(name) for kind, name in _pairs(shown.get("subjectAltName")) if kind == "DNS"}
    if names:
        return names
    subject = shown.get("subject")
    groups = subject if isinstance(subject, tuple) else ()
    return {str(name) for group in groups for kind, name in _pairs(group) if kind == "commonName"}


def check_peer(connection: ssl.SSLObject | ssl.SSLSocket, broker: str) -> None:
    """Check that the peer's certificate names this broker."""
    names = peer_names(connection)
    if broker not in names:
        shown = ", ".join(sorted(names)) or "nobody"
        raise RemoteError(f"the certificate is issued to {shown}, not to broker {broker!r}")


def _pairs(value: object) -> list[tuple[object, object]]:
    entries = value if isinstance(value, tuple) else ()
    return [entry for entry in entries if isinstance(entry, tuple) and len(entry) == 2]


# -- rehearsal -----------------------------------------------------------------------------------


def rehearse(files: TlsFiles, broker: str) -> None:
    """Check that other brokers will accept this broker's files."""
    certificate = files.certificate_of(broker)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = links_server_context(files, broker).wrap_bio(to_server, to_client, server_side=True)
    client = links_client_context(files, broker).wrap_bio(to_client, to_server)
    try:
        # TLS 1.3 needs two flights of the client; four steps are ample.
        for _ in range(4):
            _step(client)
            _step(server)
    except ssl.SSLCertVerificationError as error:
        message = f"not accepted by the CA {files.ca}: {error.verify_message}"
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
