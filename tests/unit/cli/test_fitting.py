"""Tables leave columns out rather than cutting what is in them."""

import io

from rich.console import Console, RenderableType

from anabranch.cli.screen import Column, fitted, folded, room, show

COLUMNS = (Column("name"), Column("dull", 2), Column("number", 1, is_number=True), Column("end"))
ROWS = [["one", "-" * 10, "12", "x"], ["another"]]


def lines(what: RenderableType, width: int, *, is_terminal: bool = True) -> list[str]:
    screen = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)
    show(screen, what)
    assert isinstance(screen.file, io.StringIO)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


def test_all_columns_are_there_where_they_fit() -> None:
    width = len("another  ----------  number  end")
    assert lines(fitted(COLUMNS, ROWS, width), width) == [
        "name     dull        number  end",
        "one      ----------      12  x",
        "another",
    ]


def test_the_least_important_column_goes_first() -> None:
    width = len("another  ----------  number  end") - 1
    assert lines(fitted(COLUMNS, ROWS, width), width)[0] == "name     number  end"
    assert lines(fitted(COLUMNS, ROWS, 19), 19)[0] == "name     end"


def test_what_cannot_be_left_out_is_folded_and_nothing_is_lost() -> None:
    table = fitted([Column("name")], [["abcdefghij"]], 5)
    assert "".join(lines(table, 5)) == "nameabcdefghij"


def test_a_pipe_takes_all_columns() -> None:
    screen = Console(file=io.StringIO(), width=20)
    table = fitted(COLUMNS, ROWS, room(screen))
    assert lines(table, 20, is_terminal=False)[0] == "name     dull        number  end"


def test_a_long_line_goes_on_below_its_first_word() -> None:
    words = [f"broker-{n} (down)" for n in range(4)]
    assert folded("  a", words, 40, 5) == [
        "  a  broker-0 (down) broker-1 (down)",
        "     broker-2 (down) broker-3 (down)",
    ]
