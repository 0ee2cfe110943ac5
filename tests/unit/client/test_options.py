import pytest

from anabranch.client.options import Address, parse_address
from anabranch.model.errors import LocalError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:4100", "127.0.0.1", 4100),
        ("broker.example.org:1", "broker.example.org", 1),
        (" localhost:65535 ", "localhost", 65535),
        ("[::1]:4100", "::1", 4100),
        ("[fe80::1%eth0]:7", "fe80::1%eth0", 7),
    ],
)
def test_an_address_is_read_as_people_write_it(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)
    assert str(parse_address(text)) == text.strip()


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("localhost", "has no port"),
        ("::1:4100", r"write an IPv6 address as \[::1\]:4100"),
        (":4100", "has no host"),
        ("[]:4100", "has no host"),
        ("a b:4100", "has no host"),
        ("localhost:", "no port between"),
        ("localhost:0", "no port between"),
        ("localhost:65536", "no port between"),
        ("localhost:http", "no port between"),
        ("localhost:-1", "no port between"),
        ("localhost:٤", "no port between"),
        ("", "has no port"),
    ],
)
def test_what_is_no_address_is_refused_with_advice(text: str, hint: str) -> None:
    with pytest.raises(LocalError, match=hint):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("0.0.0.0", False),
    ],
)
def test_only_what_always_means_this_machine_counts_as_here(host: str, here: bool) -> None:
    assert Address(host, 1).is_here is here
