"""The statistics that a network file names."""

from pathlib import Path

import pytest

from anabranch.config.errors import ConfigError
from anabranch.config.network_file import dump, load
from anabranch.config.statistics_file import stream_excerpt
from anabranch.model.statistics import Statistics, StreamStatistics, read_excerpt, write_statistics
from anabranch.node.settings import config_of

NETWORK = '[network]\nname = "n"\nstatistics = "known/stats.json"\n\n[tree]\na = []\n'


def network_file(tmp_path: Path) -> Path:
    path = tmp_path / "n.toml"
    path.write_text(NETWORK)
    (tmp_path / "known").mkdir()
    return path


def test_a_broker_takes_what_is_about_its_own_stream(tmp_path: Path) -> None:
    file = load(network_file(tmp_path))
    mine = StreamStatistics(stream="a", events=3, rate_per_s=0.5)
    known = Statistics(made_ns=0, streams=(StreamStatistics(stream="b", events=9), mine))
    (tmp_path / "known" / "stats.json").write_bytes(write_statistics(known))
    config = config_of(file, "a")
    assert read_excerpt(config.statistics) == (mine,)
    assert config.core().statistics == config.statistics
    assert stream_excerpt(file.statistics, "c") == b""
    assert stream_excerpt(None, "a") == b""


def test_a_file_that_is_written_names_it_again(tmp_path: Path) -> None:
    file = load(network_file(tmp_path))
    again = tmp_path / "again.toml"
    again.write_text(dump(file))
    assert load(again).statistics == tmp_path / "known" / "stats.json"


def test_a_broker_does_not_start_without_the_statistics_it_was_promised(tmp_path: Path) -> None:
    file = load(network_file(tmp_path))
    with pytest.raises(ConfigError, match="pipeline stats --export"):
        config_of(file, "a")
    (tmp_path / "known" / "stats.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"stats\.json.*write the file again"):
        config_of(file, "a")
