"""Self-contained HTML pages: no scripts, and no external fonts or images.

    page = Page("Audit")
    page.say("All is well.")
    page.draw("Rates", svg)
    page.table("Streams", ("stream", "events"), rows)
    path.write_text(page.html())

Text is escaped. Numbers in tables are right-aligned. This module keeps no state beyond the page.
"""

from collections.abc import Sequence
from html import escape

Cell = str | int | float | None

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
p { margin: .4rem 0; } .remark { color: #5b6472; font-size: .9rem; }
.verdict { display: inline-block; padding: .25rem .7rem; border-radius: .3rem; font-weight: 600; }
.good { background: #dff3e4; color: #14532d; } .bad { background: #fbe1df; color: #7f1d1d; }
.figures { display: flex; flex-wrap: wrap; gap: .6rem 2.2rem; margin: 1rem 0; padding: 0; }
.figures div { min-width: 6rem; } .figures dt { color: #5b6472; font-size: .85rem; }
.figures dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; font-size: .9rem; } .wide { overflow-x: auto; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #e4e7ec; }
th { color: #5b6472; font-weight: 600; } .number { text-align: right;
font-variant-numeric: tabular-nums; } svg { max-width: 100%; height: auto; }
"""


class Page:
    """Builder of an HTML page."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = [f"<h1>{escape(title)}</h1>"]

    def verdict(self, text: str, *, is_good: bool) -> None:
        """Add a highlighted verdict."""
        kind = "good" if is_good else "bad"
        self._parts.append(f'<p><span class="verdict {kind}">{escape(text)}</span></p>')

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def remark(self, text: str) -> None:
        """Add a paragraph in small print."""
        self._parts.append(f'<p class="remark">{escape(text)}</p>')

    def figures(self, pairs: Sequence[tuple[str, Cell]]) -> None:
        """Add a row of key figures."""
        cells = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(_text(value))}</dd></div>"
            for name, value in pairs
        )
        self._parts.append(f'<dl class="figures">{cells}</dl>')

    def draw(self, title: str, svg: str, remark: str = "") -> None:
        """Add a plot."""
        self._parts.append(f"<h2>{escape(title)}</h2>")
        if remark:
            self.remark(remark)
        self._parts.append(svg)

    def table(
        self, title: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], remark: str = ""
    ) -> None:
        """Add a table; nothing if it has no rows."""
        if not rows:
            return
        self._parts.append(f"<h2>{escape(title)}</h2>")
        if remark:
            self.remark(remark)
        kinds = [_kind(column) for column in zip(*rows, strict=True)]
        head = "".join(
            f"<th{kind}>{escape(text)}</th>" for kind, text in zip(kinds, heads, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f"<td{kind}>{escape(_text(cell))}</td>"
                for kind, cell in zip(kinds, row, strict=True)
            )
            + "</tr>"
            for row in rows
        )
        self._parts.append(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def html(self) -> str:
        body = "\n".join(self._parts)
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style></head>\n"
            f"<body>\n{body}\n</body></html>\n"
        )


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.3g}" if isinstance(cell, float) else cell


def _kind(column: Sequence[Cell]) -> str:
    is_number = all(cell is None or isinstance(cell, int | float) for cell in column)
    return ' class="number"' if is_number else ""
