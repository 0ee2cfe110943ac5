"""MkDocs hooks: pages generated from code, and links from pages to files of the repository.

1. `reference/cli.md` is generated from the `anabranch` command.
2. `reference/client-api.md` is generated from the docstrings of the public names of `anabranch`.
3. A page may link to any file of the repository. The site shows a linked file that is not in
   `docs/` as a page below `repository/`, so the same relative link works in a checkout and on the
   site. A link to a file that does not exist fails the build.
"""

import html
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import anabranch
from anabranch.cli.main import app

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".json": "json"}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
API_GROUPS = {
    "Connect": ("connect", "connect_blocking", "embedded", "Embedded", "ClientOptions"),
    "Asynchronous client": ("Client", "Subscription", "PatternSubscription", "Batch", "Fetcher"),
    "Blocking client": ("BlockingClient", "BlockingSubscription", "BlockingPatternSubscription"),
    "Received values": ("Received", "Withheld", "OrderNotKept", "Matched", "PartEvent"),
    "Events, filters and patterns": ("Event", "Filter", "attr", "Pattern", "Limits"),
    "Matching in a program": ("MatchIndex", "Matches"),
}


# -- links


def in_docs(path: str) -> bool:
    return path == "docs" or path.startswith("docs/")


def target_of(link: str, page: str) -> str:
    """Path in the repository that a link on a page leads to."""
    return os.path.normpath(Path(page).parent / link)


def outside(markdown: str, page: str) -> Iterator[str]:
    """Paths in the repository, outside of `docs`, that a page links to."""
    for text in CODE.split(markdown)[::2]:
        for match in LINK.finditer(text):
            path = target_of(match[1], page)
            if not in_docs(path):
                yield path


def page_of(path: str) -> str:
    """Address below `docs` of the page that shows a path of the repository."""
    if in_docs(path):
        return path.removeprefix("docs").removeprefix("/") or "README.md"
    return f"repository/{path}/README.md" if (ROOT / path).is_dir() else f"repository/{path}.md"


def relinked(markdown: str, page: str) -> str:
    """The text of a page with its links to repository files turned into links to pages."""
    address = page_of(page)

    def target(match: re.Match[str]) -> str:
        path = target_of(match[1], page)
        if in_docs(path) and in_docs(page):
            return match[0]
        return os.path.relpath(page_of(path), Path(address).parent) + (match[2] or "")

    parts = CODE.split(markdown)
    parts[::2] = [LINK.sub(target, text) for text in parts[::2]]
    return "".join(parts)


def shown(path: str) -> str:
    """A page that shows a file or directory of the repository."""
    source = ROOT / path
    if source.is_dir():
        names = sorted(p.name for p in source.iterdir() if p.name[0] not in "._")
        return "\n".join([f"# `{path}`", "", *(f"- `{name}`" for name in names), ""])
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".md":
        return relinked(text, path)
    return f"# `{path}`\n\n````{LANGUAGES.get(source.suffix, 'text')}\n{text}\n````\n"


def repository_pages(files: Files) -> dict[str, str]:
    """Address and text of a page for each repository file that pages link to."""
    found: dict[str, str] = {}
    waiting = [
        (path, file.src_uri)
        for file in files.documentation_pages()
        for path in outside(file.content_string, f"docs/{file.src_uri}")
    ]
    while waiting:
        path, linked_from = waiting.pop()
        if page_of(path) in found:
            continue
        if not (ROOT / path).exists():
            raise PluginError(f"{linked_from}: linked file {path} does not exist")
        found[page_of(path)] = shown(path)
        if path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
            waiting += [(each, path) for each in outside(text, path)]
    return found


# -- the command


def cell(text: str) -> str:
    return " ".join(html.escape(text).replace("|", "&#124;").split())


def command_text(command: Any, name: str, level: int) -> Iterator[str]:
    """Section of one command, then those of its subcommands."""
    context = typer.Context(command, info_name=name)
    yield f"{'#' * level} {name}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{name} {usage}\n```\n"
    yield f"{command.help or ''}\n"
    rows = [
        (record[0], record[1])
        for parameter in command.params
        if (record := parameter.get_help_record(context)) and "--help" not in parameter.opts
    ]
    if rows:
        yield "| option or argument | meaning |\n|---|---|"
        yield from (f"| <code>{cell(left)}</code> | {cell(right)} |" for left, right in rows)
        yield ""
    if command.epilog:
        yield f"{command.epilog}\n"
    for inner, subcommand in getattr(command, "commands", {}).items():
        if not subcommand.hidden:
            yield from command_text(subcommand, f"{name} {inner}", min(level + 1, 4))


def cli_page() -> str:
    intro = "# The `anabranch` command\n\nGenerated from the command's help texts.\n"
    return "\n".join([intro, *command_text(typer.main.get_command(app), "anabranch", 2)])


# -- the client API


def api_page() -> str:
    """The public names of `anabranch` by group, for mkdocstrings to fill in."""
    grouped = {name for names in API_GROUPS.values() for name in names}
    errors = [name for name in anabranch.__all__ if name.endswith("Error")]
    unknown = grouped - set(anabranch.__all__)
    forgotten = set(anabranch.__all__) - grouped - set(errors) - {"DEFAULT_LIMITS"}
    if unknown or forgotten:
        wrong = ", ".join(sorted(unknown | forgotten))
        raise PluginError(f"API_GROUPS in scripts/docs_hooks.py is out of date: {wrong}")
    lines = [
        "# Client API",
        "",
        "Generated from docstrings. Import every name from `anabranch`.",
        "",
    ]
    for title, names in {**API_GROUPS, "Errors": tuple(errors)}.items():
        lines += [f"## {title}", ""]
        for name in names:
            value = getattr(anabranch, name)
            lines += [f"::: {value.__module__}.{value.__qualname__}", ""]
    return "\n".join(lines)


# -- called by mkdocs

GENERATED: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli_page,
    "reference/client-api.md": api_page,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {**repository_pages(files), **{name: make() for name, make in GENERATED.items()}}
    for address, text in pages.items():
        files.append(File.generated(config, address, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    address = page.file.src_uri
    if address.startswith("repository/") or address in GENERATED:
        return markdown
    return relinked(markdown, f"docs/{address}")
