"""The options with which commands find a network."""

from pathlib import Path

import pytest

from anabranch.cli.connect_options import is_network_given
from anabranch.cli.errors import CommandError
from anabranch.cli.pipeline.spark_io import places_of

FILE = Path("network.toml")


def test_the_environment_names_the_network_unless_events_come_from_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ANABRANCH_NETWORK", raising=False)
    assert is_network_given(["127.0.0.1:4100"], None)
    assert is_network_given([], FILE, [tmp_path])
    assert not is_network_given([], None)
    monkeypatch.setenv("ANABRANCH_NETWORK", "network.toml")
    assert is_network_given([], None)
    assert not is_network_given([], None, [tmp_path])


def test_a_pipeline_without_sources_reads_the_network_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ANABRANCH_NETWORK", raising=False)
    with pytest.raises(CommandError, match="give the events: a directory, an address, or"):
        places_of([], None, None, plaintext=False)
    monkeypatch.setenv("ANABRANCH_NETWORK", "network.toml")
    assert places_of([], None, None, plaintext=False).way is not None
    assert places_of([str(tmp_path)], None, None, plaintext=False).way is None
