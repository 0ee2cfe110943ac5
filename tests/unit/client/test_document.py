"""The examples of docs/how-to/use-the-client.md run."""

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import anabranch

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs/how-to/use-the-client.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
BLOCKING_BLOCKS = re.findall(r"```python blocking\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[anabranch.Embedded]:
    file = tmp_path_factory.mktemp("document") / "single.toml"
    # A log forgets at once what no subscription needs, unless it is told to keep it.
    file.write_text('[network]\nname = "single"\n[tree]\na = []\n[options]\nkeep_s = 600.0\n')
    with anabranch.embedded(file) as running:
        yield running


def at(network: anabranch.Embedded, text: str) -> str:
    """An example with the addresses of a network that is there."""
    return re.sub(r"127\.0\.0\.1:4[12]00", network.addresses[0], text)


def test_there_are_examples() -> None:
    assert len(BLOCKS) == 9
    assert len(BLOCKING_BLOCKS) == 2


@pytest.mark.parametrize("place", range(len(BLOCKS)))
def test_an_example_of_the_document_runs(
    network: anabranch.Embedded, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(at(network, BLOCKS[place]), "use-the-client.md", "exec", flags)
    work = eval(code, {})
    assert inspect.iscoroutine(work)
    asyncio.run(asyncio.wait_for(work, 300))
    assert bool(capsys.readouterr().out) == ("print" in BLOCKS[place])


def test_the_blocking_example_runs(
    network: anabranch.Embedded, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(at(network, BLOCKING_BLOCKS[1]), "use-the-client.md", "exec"), {})
    assert capsys.readouterr().out == "1\n2\n3\n4\n"


def test_the_example_of_a_fetcher_runs(
    network: anabranch.Embedded, capsys: pytest.CaptureFixture[str]
) -> None:
    with network.connect_blocking(name="feed") as client:
        client.publish_many({"n": n} for n in range(5))
    exec(compile(at(network, BLOCKING_BLOCKS[0]), "use-the-client.md", "exec"), {})
    first, through, count, _ = map(int, capsys.readouterr().out.split())
    assert (first, through) == (1, through)
    assert count >= 5


def test_importing_the_package_loads_no_sockets() -> None:
    code = "import anabranch, sys; print({'asyncio', 'ssl', 'socket'} & set(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert ran.stdout == "set()\n"


def test_every_public_name_is_there() -> None:
    for name in anabranch.__all__:
        assert getattr(anabranch, name) is not None
    assert set(anabranch.__all__) <= set(dir(anabranch))


def test_an_unknown_name_is_an_error_with_a_similar_one() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import anabranch; anabranch.konnect"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "has no attribute 'konnect'. Did you mean: 'connect'?" in ran.stderr
