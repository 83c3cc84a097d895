"""Tables of a page: those of data become Markdown rows, those that lay out the page divisions."""

from __future__ import annotations

from typing import Any

from crag_dspy.markup import HEADINGS, blocks_in, flat, linked, replace

MAX_COLUMNS = 60
MAX_ROWSPAN = 500
MAX_CELLS = 20_000
_LAYOUT = HEADINGS | {"table", "pre", "form", "article", "dl", "blockquote"}

Line = list[str]


def rewrite_table(table: Any) -> None:
    """Rewrite a table in place; tables inside it must have been rewritten before."""
    rows = [row for row in table.iter("tr") if next(row.iterancestors("table")) is table]
    cells = [_cells(row) for row in rows]
    layout = table.get("role") == "presentation" or max(map(len, cells), default=0) < 2 or linked(table) > 0.7
    if layout or any(_lays_out(cell) for row in cells for cell in row):
        for element in [table, *table.iter("caption", "thead", "tbody", "tfoot", "tr", "td", "th")]:
            element.tag = "div"
        return
    captions = [flat(caption) for caption in table.iter("caption")]
    replace(table, "\n".join(filter(None, [*captions, *_markdown(rows)])))


def _cells(row: Any) -> list[Any]:
    return [cell for cell in row if cell.tag in ("td", "th")]


def _lays_out(cell: Any) -> bool:
    blocks = list(blocks_in(cell))
    return len(blocks) > 6 or not _LAYOUT.isdisjoint(blocks)


def _markdown(rows: list[Any]) -> list[str]:
    """Return a table's lines: its heading rows as one, a rule under it, and a line for each row."""
    grid = _grid(rows)
    head: Line = []
    while grid and grid[0][0]:
        _, line = grid.pop(0)
        width = max(len(head), len(line))
        above, below = (part + [""] * (width - len(part)) for part in (head, line))
        head = [one if one == other else f"{one} {other}".strip() for one, other in zip(above, below, strict=True)]
    lines = [_row(line) for _, line in grid]
    return [_row(head), _row(["---"] * len(head)), *lines] if head else lines


def _grid(rows: list[Any]) -> list[tuple[bool, Line]]:
    """Return the rows with a text for every column, and whether each is a heading; a cell that spans several stands in each.

    A row is then understood without those above it.
    """
    grid: list[tuple[bool, Line]] = []
    hanging: dict[int, tuple[int, str]] = {}
    """By column: for how many rows more a cell reaches down, and its text."""
    count = 0
    for row in rows:
        cells = _cells(row)
        line, hanging = _line(cells, hanging)
        if any(line):
            grid.append((bool(cells) and (row.getparent().tag == "thead" or all(cell.tag == "th" for cell in cells)), line))
        count += 1 + len(line)
        if count > MAX_CELLS:
            break
    return grid


def _line(cells: list[Any], hanging: dict[int, tuple[int, str]]) -> tuple[Line, dict[int, tuple[int, str]]]:
    line: Line = []
    below: dict[int, tuple[int, str]] = {}

    def reached_into() -> None:
        while len(line) in hanging:
            left, text = hanging[len(line)]
            if left > 1:
                below[len(line)] = (left - 1, text)
            line.append(text)

    for cell in cells[:MAX_COLUMNS]:
        reached_into()
        text, down = flat(cell).replace("|", "/"), _span(cell, "rowspan", MAX_ROWSPAN)
        for _ in range(_span(cell, "colspan", MAX_COLUMNS - len(line))):
            if down > 1:
                below[len(line)] = (down - 1, text)
            line.append(text)
    reached_into()
    return line, below


def _row(line: Line) -> str:
    return f"| {' | '.join(line)} |"


def _span(cell: Any, name: str, most: int) -> int:
    value = cell.get(name, "1").strip()
    return max(0, min(int(value[:6]), most)) or 1 if value.isascii() and value.isdigit() else 1
