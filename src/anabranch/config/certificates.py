"""A private certificate authority (CA) and broker certificates, for trials.

This is enough to try a network over TLS. In production, certificates come from the organisation's
own CA, with the broker's name among the DNS names.

Rules

1. The CA key is stored beside its certificate, with the suffix `.key`. Its holder can impersonate
   any broker: move it away after the brokers have their files.
2. Existing files are kept, so that brokers added later get certificates of the same CA. `renew`
   replaces the brokers' files, with the same CA.
3. A CA certificate without its key is foreign and never overwritten.
4. A certificate names the broker, for links, and its host, for clients.
5. Keys are readable only by their owner, from the moment they are created.

Requires the package `cryptography` (the extra `certificates`).
"""

import datetime
import ipaddress
import os
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from anabranch.config.addresses import BrokerSettings
from anabranch.config.errors import ConfigError
from anabranch.config.network_file import NetworkFile
from anabranch.config.tls import TlsFiles

_Name = x509.DNSName | x509.IPAddress


class Made(msgspec.Struct, frozen=True):
    """Files that were written, and existing certificates that were kept."""

    written: tuple[Path, ...]
    kept: tuple[Path, ...]


class _Authority:
    """A CA that signs certificates of one validity period."""

    def __init__(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, days: int
    ) -> None:
        self.certificate = certificate
        self.key = key
        self.days = days


def make_certificates(file: NetworkFile, *, days: int = 365, renew: bool = False) -> Made:
    """Create the missing files that `[tls]` names."""
    if file.tls is None:
        raise ConfigError(
            'has no [tls]; add it with ca = "certificates/ca.pem",'
            ' certificate = "certificates/{broker}.pem" and key = "certificates/{broker}.key"',
            path=file.path,
        )
    _check_apart(file, file.tls)
    written: list[Path] = []
    kept: list[Path] = []
    authority = _authority(file.tls.ca, file.name, days, written)
    for broker in file.brokers.values():
        certificate, key = file.tls.certificate_of(broker.name), file.tls.key_of(broker.name)
        if certificate.exists() and key.exists() and not renew:
            kept.append(certificate)
            continue
        _make_broker(authority, broker, file.tls)
        written += [certificate, key]
    return Made(tuple(written), tuple(kept))


def _check_apart(file: NetworkFile, files: TlsFiles) -> None:
    owners = {files.ca: "the CA", files.ca.with_suffix(".key"): "the CA key"}
    for name in file.brokers:
        for path in (files.certificate_of(name), files.key_of(name)):
            if path in owners:
                message = f"is the path of a file of broker {name!r} and of {owners[path]}"
                raise ConfigError(f"{message}; use different paths in [tls]", path=path)
            owners[path] = f"broker {name!r}"


# -- the CA --------------------------------------------------------------------------------------


def _authority(path: Path, network: str, days: int, written: list[Path]) -> _Authority:
    key_path = path.with_suffix(".key")
    if path.exists():
        return _known_authority(path, key_path, days)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{network} trial authority")])
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_key(key_path, key)
    _write(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    written += [path, key_path]
    return _Authority(certificate, key, days)


def _known_authority(path: Path, key_path: Path, days: int) -> _Authority:
    if not key_path.exists():
        raise ConfigError(
            f"this CA exists, but its key {key_path} does not, so it cannot sign certificates;"
            " give another file as ca in [tls], or restore the key",
            path=path,
        )
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the CA cannot be read: {error}", path=path) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("is not a key that this command created", path=key_path)
    if key.public_key() != certificate.public_key():
        raise ConfigError(f"the private key does not match the certificate {path}", path=key_path)
    return _Authority(certificate, key, days)


# -- brokers -------------------------------------------------------------------------------------


def _make_broker(authority: _Authority, broker: BrokerSettings, files: TlsFiles) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, broker.name)])
    issuer = authority.certificate.subject
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = (
        _builder(name, issuer, key.public_key(), authority.days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(signer, critical=False)
        .add_extension(x509.SubjectAlternativeName(_names(broker)), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    # Write the key first: a certificate without its key would be kept forever.
    _write_key(files.key_of(broker.name), key)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    _write(files.certificate_of(broker.name), pem, 0o644)


def _names(broker: BrokerSettings) -> list[_Name]:
    names: list[_Name] = [x509.DNSName(broker.name)]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(broker.host)))
    except ValueError:
        if broker.host != broker.name:
            names.append(x509.DNSName(broker.host))
    return names


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # Clocks of other machines may be slow.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    data = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(path, data, 0o600)


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
    except OSError as error:
        what = error.strerror or type(error).__name__
        raise ConfigError(f"cannot be written: {what}", path=path) from None
