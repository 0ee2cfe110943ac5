"""`[limits]` and `[options]`: every field can be written, and the reference lists them all."""

from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from anabranch.config.errors import ConfigError
from anabranch.config.network_file import loads
from anabranch.core.options import Options
from anabranch.model.limits import Limits

PAGE = Path(__file__).parents[3] / "docs/reference/network-file.md"
PATH = Path("/srv/n.toml")
HEAD = '[network]\nname = "n"\n[tree]\na = []\n'
FIELDS = [
    *(("limits", field.name, field.default) for field in msgspec.structs.fields(Limits)),
    *(
        ("options", field.name, field.default)
        for field in msgspec.structs.fields(Options)
        if field.name
        not in {"copies", "confirm", "keepers", "prefer"}  # these are in [replication]
    ),
]


def another(value: object, kind: object) -> tuple[str, object]:
    """A value of the same kind that is allowed too, as text and as it is."""
    if isinstance(value, bool):
        return str(not value).lower(), not value
    if isinstance(value, int):
        return str(value - 1), value - 1
    if isinstance(value, float):
        return str(value * 1.5 + 0.5), value * 1.5 + 0.5
    if value is None and int in get_args(kind):
        return "7_000_000", 7_000_000
    if value is None:
        return '3.5\nretention = "lossy"', 3.5
    word = next(each for each in get_args(kind) if each != value)
    return f'"{word}"', word


def shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}"
    return repr(value) if isinstance(value, float) else f'"{value}"'


@pytest.mark.parametrize(("table", "name", "default"), FIELDS)
def test_every_field_can_be_written(table: str, name: str, default: object) -> None:
    kind = get_type_hints(Options)[name] if table == "options" else int
    text, expected = another(default, kind)
    file = loads(f"{HEAD}[{table}]\n{name} = {text}\n", PATH)
    assert getattr(getattr(file, table), name) == expected
    assert expected != default


@pytest.mark.parametrize(("table", "name", "default"), FIELDS)
def test_the_reference_has_every_field_with_its_default(
    table: str, name: str, default: object
) -> None:
    part = PAGE.read_text().split(f"## `[{table}]`")[1].split("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith(f"| `{name}`")]
    assert len(rows) == 1
    assert f"| `{shown(default)}` |" in rows[0]


def test_whole_numbers_do_for_times() -> None:
    file = loads(f"{HEAD}[options]\ndead_after_s = 3\nmark_after_s = 0\n", PATH)
    assert isinstance(file.options.dead_after_s, float)
    assert file.options.mark_after_s == 0.0


def test_a_limit_of_age_needs_lossy_retention() -> None:
    with pytest.raises(ConfigError, match=r"n.toml:6: options.log_age_s_max: .*lossy"):
        loads(f"{HEAD}[options]\nlog_age_s_max = 5\n", PATH)


def test_a_frame_has_room_in_what_clients_may_hold() -> None:
    text = f"{HEAD}[limits]\nmemory_bytes_max = 120_000_000\n"
    with pytest.raises(ConfigError, match="at least eight times frame_bytes_max"):
        loads(text, PATH)
    text = f"{HEAD}[limits]\nframe_bytes_max = 100_000_000\n"
    with pytest.raises(
        ConfigError, match=r"limits\.frame_bytes_max: clients together may use 67108864"
    ):
        loads(text, PATH)


def test_staging_has_room_in_its_share_of_the_memory() -> None:
    wish = "[options]\nstage_bytes_max = 200_000_000\n"
    with pytest.raises(ConfigError, match="exceed the quarter of memory_bytes_max"):
        loads(f"{HEAD}{wish}", PATH)
    file = loads(f"{HEAD}{wish}[limits]\nmemory_bytes_max = 800_000_000\n", PATH)
    assert file.options.stage_bytes_max == 200_000_000
