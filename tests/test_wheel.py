"""What users install: the sdist, the wheel that is built from it, and the README's example there.

The environment is empty but for the wheel and what it requires, without the extras. The required
packages are links to those of this environment, so nothing is downloaded.
"""

import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import anabranch
from tests.test_readme import block

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
VERSION = anabranch.__version__


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def required_by(
    distribution: metadata.Distribution, found: dict[str, metadata.Distribution]
) -> None:
    """Find all that a distribution requires without extras, and what those require."""
    for text in distribution.requires or ():
        required = Requirement(text)
        is_wanted = required.marker is None or required.marker.evaluate({"extra": ""})
        if is_wanted and required.name not in found:
            found[required.name] = metadata.distribution(required.name)
            required_by(found[required.name], found)


def link(distribution: metadata.Distribution, place: Path) -> None:
    """Have a distribution in another environment."""
    for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        target = place / name
        if not target.exists():
            target.symlink_to(Path(str(distribution.locate_file(name))))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an sdist, and the wheel that was built from it."""
    place = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", place, ROOT)
    return place


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and nothing that it does not require."""
    place = tmp_path_factory.mktemp("empty")
    venv.create(place, with_pip=False)
    (packages,) = place.glob("lib/python*/site-packages")
    (wheel,) = built.glob("*.whl")
    info = zipfile.Path(wheel, f"anabranch-{VERSION}.dist-info/")
    found: dict[str, metadata.Distribution] = {}
    required_by(metadata.PathDistribution(info), found)
    assert {"msgspec", "numba", "numpy"} <= set(found)
    assert not {"pytest", "pyspark", "mypy"} & set(found)
    for distribution in found.values():
        link(distribution, packages)
    programs = place / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python")
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel)
    run(*pip, "check")
    return programs


def test_the_wheel_holds_the_packages_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(built / f"anabranch-{VERSION}-py3-none-any.whl") as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
    info = f"anabranch-{VERSION}.dist-info/"
    source = ROOT / "src"
    ours = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    compiled = {name for name in ours if "__pycache__" in name}
    assert {name for name in names if not name.startswith(info)} == ours - compiled
    assert {f"{info}METADATA", f"{info}licenses/LICENSE", f"{info}licenses/NOTICE"} <= names


def test_the_sdist_holds_what_a_build_and_its_tests_need(built: Path) -> None:
    with tarfile.open(built / f"anabranch-{VERSION}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "SECURITY.md"}
    wanted |= {"constraints.txt", "scripts/test", "tests/test_wheel.py"}
    assert wanted <= names
    assert not [name for name in names if name.startswith((".", "dist/")) and name != ".gitignore"]


def test_the_readme_example_runs_where_only_the_wheel_is_installed(
    installed: Path, tmp_path: Path
) -> None:
    program = tmp_path / "example.py"
    program.write_text(block("python"))
    assert run(installed / "python", "-I", program, cwd=tmp_path) == block("text")


def test_the_command_runs_where_only_the_wheel_is_installed(installed: Path) -> None:
    assert run(installed / "anabranch", "--version") == f"anabranch {VERSION}\n"
    assert "Usage: anabranch" in run(installed / "anabranch", "--help")
    assert run(installed / "anabranch", "network", "new", "single").startswith("#")
