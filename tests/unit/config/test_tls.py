"""TLS: who is let in, who is not, and what is said about files that do not fit."""

import asyncio
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from anabranch.config.certificates import make_certificates
from anabranch.config.errors import ConfigError
from anabranch.config.network_file import NetworkFile, loads
from anabranch.config.tls import (
    TlsFiles,
    check_peer,
    client_context,
    clients_server_context,
    links_client_context,
    links_server_context,
    peer_names,
    rehearse,
)
from anabranch.model.errors import RemoteError

TEXT = """[network]
name = "n"
[tree]
a = ["b"]
[tls]
ca = "pki/ca.pem"
certificate = "pki/{broker}.pem"
key = "pki/{broker}.key"
"""


def network(directory: Path) -> NetworkFile:
    return loads(TEXT, directory / "n.toml")


def files_of(file: NetworkFile) -> TlsFiles:
    assert file.tls is not None
    return file.tls


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Files that nobody changes."""
    file = network(tmp_path_factory.mktemp("shared"))
    make_certificates(file)
    return files_of(file)


@pytest.fixture
def own(tmp_path: Path) -> TlsFiles:
    """Files that a test may spoil."""
    file = network(tmp_path)
    make_certificates(file)
    return files_of(file)


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a connection in memory, shaken hands."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(down, up, server_hostname=host),
        server.wrap_bio(up, down, server_side=True),
    )
    done: set[int] = set()
    for _ in range(4):
        for number, end in enumerate(ends):
            try:
                end.do_handshake()
                done.add(number)
            except ssl.SSLWantReadError:
                continue
    assert done == {0, 1}
    return ends[1], ends[0]


def test_brokers_know_each_other_by_certificate(files: TlsFiles) -> None:
    server, client = shake(links_server_context(files, "a"), links_client_context(files, "b"))
    assert server.version() == client.version() == "TLSv1.3"
    assert "b" in peer_names(server)
    check_peer(server, "b")
    check_peer(client, "a")
    with pytest.raises(RemoteError, match="issued to b, not to broker 'a'"):
        check_peer(server, "a")


def test_link_without_a_certificate_is_refused(files: TlsFiles) -> None:
    with pytest.raises(ssl.SSLError):
        shake(links_server_context(files, "a"), client_context(files.ca), "127.0.0.1")


def test_link_with_a_certificate_of_another_authority_is_refused(
    files: TlsFiles, own: TlsFiles
) -> None:
    stranger = links_client_context(own, "b")
    stranger.load_verify_locations(files.ca)  # it trusts us; we must not trust it
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(links_server_context(files, "a"), stranger)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(links_server_context(own, "a"), links_client_context(files, "b"))


def test_client_needs_no_certificate_and_checks_the_host(files: TlsFiles) -> None:
    server, _ = shake(clients_server_context(files, "a"), client_context(files.ca), "127.0.0.1")
    assert peer_names(server) == set()
    with pytest.raises(RemoteError, match="issued to nobody"):
        check_peer(server, "a")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(clients_server_context(files, "a"), client_context(files.ca), "10.0.0.1")


def test_client_may_show_a_certificate_if_the_authority_signed_it(
    files: TlsFiles, own: TlsFiles
) -> None:
    context = client_context(files.ca, files.certificate_of("b"), files.key_of("b"))
    server, _ = shake(clients_server_context(files, "a"), context, "127.0.0.1")
    assert peer_names(server) == {"b"}
    stranger = client_context(files.ca, own.certificate_of("b"), own.key_of("b"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(clients_server_context(files, "a"), stranger, "127.0.0.1")


def test_older_versions_are_refused(files: TlsFiles) -> None:
    old = links_client_context(files, "b")
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(links_server_context(files, "a"), old)


def test_contexts_work_on_real_sockets(files: TlsFiles) -> None:
    async def talk() -> tuple[bytes, set[str]]:
        seen: set[str] = set()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.update(peer_names(writer.get_extra_info("ssl_object")))
            writer.write(await reader.readexactly(3))
            await writer.drain()
            writer.close()

        accepting = links_server_context(files, "a")
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=accepting)
        async with server:
            port = server.sockets[0].getsockname()[1]
            dialling = links_client_context(files, "b")
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=dialling)
            writer.write(b"abc")
            answered = await reader.readexactly(3)
            writer.close()
            await writer.wait_closed()
        return answered, seen

    assert asyncio.run(asyncio.wait_for(talk(), 120)) == (b"abc", {"b"})


# -- files that do not fit


def test_missing_files_are_named(own: TlsFiles) -> None:
    own.key_of("a").unlink()
    with pytest.raises(ConfigError, match=r"a\.key: the private key cannot be read: No such file"):
        links_server_context(own, "a")
    own.certificate_of("a").unlink()
    with pytest.raises(ConfigError, match=r"a\.pem: the certificate cannot be read: No such file"):
        links_client_context(own, "a")
    own.ca.unlink()
    with pytest.raises(ConfigError, match=r"ca\.pem: the CA certificate cannot be"):
        client_context(own.ca)


def test_key_of_another_broker_does_not_fit(own: TlsFiles) -> None:
    own.key_of("a").write_bytes(own.key_of("b").read_bytes())
    with pytest.raises(
        ConfigError, match=r"a\.key: the private key does not match the certificate"
    ):
        links_server_context(own, "a")


@pytest.mark.parametrize(
    ("spoilt", "complaint"),
    [
        ("ca.pem", r"ca\.pem: contains no PEM certificate"),
        ("a.pem", r"a\.pem: contains no PEM certificate"),
        ("a.key", r"a\.key: contains no PEM private key"),
    ],
)
def test_garbage_is_named(own: TlsFiles, spoilt: str, complaint: str) -> None:
    (own.ca.parent / spoilt).write_bytes(b"\x00 no PEM")
    with pytest.raises(ConfigError, match=complaint):
        links_server_context(own, "a")


def test_encrypted_key_is_refused_instead_of_asking_at_the_terminal(own: TlsFiles) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    own.key_of("a").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match=r"a\.key: the private key is encrypted"):
        links_server_context(own, "a")


# -- rehearsal


def test_good_files_pass_the_rehearsal(files: TlsFiles) -> None:
    rehearse(files, "a")
    rehearse(files, "b")


def test_rehearsal_finds_the_certificate_of_another_broker(own: TlsFiles) -> None:
    own.certificate_of("a").write_bytes(own.certificate_of("b").read_bytes())
    own.key_of("a").write_bytes(own.key_of("b").read_bytes())
    with pytest.raises(ConfigError, match=r"a\.pem: the certificate is issued to b, not to"):
        rehearse(own, "a")


def test_rehearsal_finds_a_foreign_authority(own: TlsFiles, files: TlsFiles) -> None:
    own.ca.write_bytes(files.ca.read_bytes())
    with pytest.raises(ConfigError, match=r"a\.pem: not accepted by the CA .*ca\.pem"):
        rehearse(own, "a")


def test_rehearsal_finds_an_expired_certificate(tmp_path: Path) -> None:
    file = network(tmp_path)
    make_certificates(file)
    make_certificates(file, days=0, renew=True)
    with pytest.raises(ConfigError, match=r"a\.pem: not accepted .* certificate has expired"):
        rehearse(files_of(file), "a")
