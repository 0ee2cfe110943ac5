"""Certificates for trials: what is made, what is kept, what is never overwritten."""

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from anabranch.config.certificates import make_certificates
from anabranch.config.errors import ConfigError
from anabranch.config.network_file import NetworkFile, loads
from anabranch.config.tls import TlsFiles, rehearse

TLS = '[tls]\nca = "pki/ca.pem"\ncertificate = "pki/{broker}.pem"\nkey = "pki/{broker}.key"\n'


def network(directory: Path, tree: str = 'a = ["b"]', tls: str = TLS) -> NetworkFile:
    return loads(f'[network]\nname = "n"\n[tree]\n{tree}\n{tls}', directory / "n.toml")


def files_of(file: NetworkFile) -> TlsFiles:
    assert file.tls is not None
    return file.tls


def test_every_broker_gets_files_that_the_authority_accepts(tmp_path: Path) -> None:
    file = network(tmp_path)
    made = make_certificates(file)
    names = {path.name for path in made.written}
    assert names == {"ca.pem", "ca.key", "a.pem", "a.key", "b.pem", "b.key"}
    for broker in file.brokers:
        rehearse(files_of(file), broker)


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    keys = [path for path in make_certificates(network(tmp_path)).written if path.suffix == ".key"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in keys] == [0o600] * 3


def test_a_certificate_names_the_broker_and_its_host(tmp_path: Path) -> None:
    text = (
        '[brokers.a]\nhost = "a.example.org"\n[brokers.b]\nhost = "10.0.0.7"\n[brokers.c]\n'
        'host = "c"\n'
    )
    file = network(tmp_path, 'a = ["b", "c"]', text + TLS)
    make_certificates(file)

    def names(broker: str) -> list[str]:
        pem = files_of(file).certificate_of(broker).read_bytes()
        found = x509.load_pem_x509_certificate(pem).extensions
        alternatives = found.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(each.value) for each in alternatives]

    assert names("a") == ["a", "a.example.org"]
    assert names("b") == ["b", "10.0.0.7"]
    assert names("c") == ["c"]


def test_what_is_there_is_kept_and_a_new_broker_joins_the_same_authority(tmp_path: Path) -> None:
    first = network(tmp_path)
    make_certificates(first)
    before = {path: path.read_bytes() for path in (tmp_path / "pki").iterdir()}
    grown = network(tmp_path, 'a = ["b", "c"]')
    made = make_certificates(grown)
    assert {path.name for path in made.written} == {"c.pem", "c.key"}
    assert {path.name for path in made.kept} == {"a.pem", "b.pem"}
    assert {path: path.read_bytes() for path in before} == before
    rehearse(files_of(grown), "c")


def test_renewal_changes_the_brokers_and_not_the_authority(tmp_path: Path) -> None:
    file = network(tmp_path)
    make_certificates(file)
    files = files_of(file)
    authority, old = files.ca.read_bytes(), files.certificate_of("a").read_bytes()
    make_certificates(file, renew=True)
    assert files.ca.read_bytes() == authority
    assert files.certificate_of("a").read_bytes() != old
    rehearse(files, "a")


def test_an_authority_without_its_key_is_never_overwritten(tmp_path: Path) -> None:
    file = network(tmp_path)
    make_certificates(file)
    files = files_of(file)
    files.ca.with_suffix(".key").unlink()
    authority = files.ca.read_bytes()
    with pytest.raises(ConfigError, match="this CA exists, but its key"):
        make_certificates(file, renew=True)
    assert files.ca.read_bytes() == authority


def test_an_authority_with_another_key_signs_nothing(tmp_path: Path) -> None:
    file = network(tmp_path)
    make_certificates(file)
    key = tmp_path / "pki" / "ca.key"
    key.write_bytes((tmp_path / "pki" / "a.key").read_bytes())
    with pytest.raises(ConfigError, match=r"ca\.key: the private key does not match"):
        make_certificates(file, renew=True)
    key.write_text("garbage")
    with pytest.raises(ConfigError, match="the CA cannot be read"):
        make_certificates(file, renew=True)


def test_a_file_without_tls_is_told_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no \[tls\]; add it with ca = "):
        make_certificates(network(tmp_path, tls=""))


def test_a_broker_that_would_share_a_file_with_the_authority_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"ca\.pem: is the path of a file of broker 'ca' and of t"
    ):
        make_certificates(network(tmp_path, 'a = ["ca"]'))
    assert not (tmp_path / "pki").exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "pki").write_text("a file in the way")
    with pytest.raises(ConfigError, match=r"pki/ca\.key: cannot be written"):
        make_certificates(network(tmp_path))


def test_certificates_pass_the_strict_check_of_newer_versions(tmp_path: Path) -> None:
    file = network(tmp_path)
    make_certificates(file)
    files = files_of(file)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate_of("a"), files.key_of("a"))
    client = ssl.create_default_context(cafile=str(files.ca))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up, server_hostname="127.0.0.1")
    far = server.wrap_bio(up, down, server_side=True)
    for end in (near, far):
        with pytest.raises(ssl.SSLWantReadError):
            end.do_handshake()
    near.do_handshake()
    assert near.version() == "TLSv1.3"
