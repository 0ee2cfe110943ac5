"""Certificates for a broker in a test."""

from pathlib import Path

from anabranch.config.certificates import make_certificates
from anabranch.config.network_file import loads
from anabranch.config.tls import TlsFiles

NETWORK = """[network]
name = "shop"
[tree]
a = []
[tls]
ca = "pki/ca.pem"
certificate = "pki/{broker}.pem"
key = "pki/{broker}.key"
"""


def certified(folder: Path) -> TlsFiles:
    """The certificates of broker `a`, newly made."""
    file = loads(NETWORK, folder / "shop.toml")
    make_certificates(file)
    assert file.tls is not None
    return file.tls
