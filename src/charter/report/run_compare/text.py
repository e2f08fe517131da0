"""Compared runs in a terminal and the words for their amounts and differences. Pure."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from charter.report.results import figure_text
from charter.report.run_compare.comparison import Difference, FigureRow, Measured, RunComparison, Spent
from charter.units import format_seconds, format_usd

VERDICTS = {
    "higher": "higher, beyond noise",
    "lower": "lower, beyond noise",
    "within noise": "within noise",
    "no interval": "no interval",
}


def value_text(value: Measured | None, unit: str) -> str:
    """A figure with its interval.

    >>> value_text(Measured(value=0.577, low=0.509, high=0.643), "share")
    '57.7 % (50.9 to 64.3)'
    """
    if value is None:
        return "-"
    shown = figure_text(value.value, unit, with_unit=True)
    if value.low is None or value.high is None:
        return shown
    return f"{shown} ({figure_text(value.low, unit)} to {figure_text(value.high, unit)})"


def difference_text(found: Difference | None, unit: str) -> str:
    """A difference with its interval and sign; of shares in percentage points.

    >>> difference_text(Difference(value=0.02, low=-0.01, high=0.05), "share")
    '+2.0 points (-1.0 to +5.0)'
    """
    if found is None:
        return "-"
    unit_words = " points" if unit == "share" else f" {unit}" if unit else ""
    shown = _signed(found.value, unit) + unit_words
    if found.low is None or found.high is None:
        return shown
    return f"{shown} ({_signed(found.low, unit)} to {_signed(found.high, unit)})"


def verdict_text(row: FigureRow, index: int) -> str:
    """Return the verdict on whether a run differs from the first beyond noise, and what they do not share."""
    difference = row.differences[index]
    if difference is None:
        return ""
    words = VERDICTS[difference.verdict]
    return f"{words}, but measured with another {' and '.join(row.yardsticks)}" if row.yardsticks else words


def _signed(value: float, unit: str) -> str:
    text = figure_text(value, unit)
    return text if text.startswith("-") else f"+{text}"


def time_text(item: Spent) -> str:
    """The time, with the ratio to the first run."""
    return format_seconds(item.seconds) + _times(item.seconds_ratio)


def usd_text(item: Spent) -> str:
    """The cost, with the ratio to the first run."""
    return format_usd(item.usd) + _times(item.usd_ratio)


def waste_text(item: Spent) -> str:
    """Return the amount lost to kills and failed attempts in words; `nothing` where that is none."""
    if not item.lost_seconds:
        return "nothing"
    money = "" if item.lost_usd is None else f", {format_usd(item.lost_usd)}"
    share = "" if item.kept_share is None else f" ({1 - item.kept_share:.1%})"
    return f"{format_seconds(item.lost_seconds)}{money}{share}"


def planned_text(item: Spent) -> str:
    """Planned time and cost; a dash where there was no plan."""
    if item.planned_seconds is None:
        return "-"
    money = "" if item.planned_usd is None else f", {format_usd(item.planned_usd)}"
    return f"{format_seconds(item.planned_seconds)}{money}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None or round(ratio, 2) == 1.0 else f" ({ratio:.2f} x)"


COLOURS = {"higher": "cyan", "lower": "magenta"}
"""Neither is good nor bad: a lower perplexity is better, a lower win rate is not."""


def comparison_text(found: RunComparison, *, all_figures: bool = False) -> RenderableType:
    """The whole comparison; of figures the headlines, where the evaluation names some, unless all are wanted."""
    return Group(*_parts(found, all_figures=all_figures))


def _parts(found: RunComparison, *, all_figures: bool) -> Iterator[RenderableType]:
    yield _totals(found)
    if found.stages:
        yield _stages(found)
    yield _spec(found) if found.spec else Text("\nThe runs were asked for the same.\n", style="bold")
    headlines = [row for row in found.figures if row.headline]
    rows = found.figures if all_figures or not headlines else headlines
    if rows:
        yield _figures(found, rows)
    if len(rows) < len(found.figures):
        yield Text(f"{len(found.figures) - len(rows)} more figures: --all, --json or --html", style="dim")
    yield from (Text(f"- {note}", style="dim") for note in found.notes)


def _table(title: str, labels: Sequence[str], first: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column(first, overflow="fold")
    for label in labels:
        table.add_column(Text(label), overflow="fold")
    return table


def _totals(found: RunComparison) -> Table:
    table = _table("Runs", found.labels, "")
    table.add_row("project", *map(Text, found.projects))
    table.add_row("state", *(Text(item.state) for item in found.totals))
    for name, of in (("time", time_text), ("cost", usd_text), ("planned", planned_text), ("lost", waste_text)):
        table.add_row(name, *(Text(of(item)) for item in found.totals))
    table.add_row("attempts", *(Text(str(item.attempts)) for item in found.totals))
    if any(item.calls for item in found.totals):
        table.add_row("calls to servers", *(Text(f"{item.calls:,}") for item in found.totals))
    return table


def _stages(found: RunComparison) -> Table:
    table = _table("Stages", found.labels, "Stage")
    for row in found.stages:
        names = dict.fromkeys(item.name for item in row if item is not None)
        table.add_row(Text(" / ".join(names)), *map(_stage, row))
    return table


def _stage(item: Spent | None) -> Text:
    if item is None:
        return Text("-", style="dim")
    if not item.attempts:
        return Text(item.state, style="dim")
    money = "" if item.usd is None else f", {usd_text(item)}"
    state = "" if item.state == "done" else f" {item.state}"
    return Text(f"{time_text(item)}{money}{state}")


def _spec(found: RunComparison) -> Table:
    table = _table("What differs in what was asked", found.labels, "Setting")
    for index, row in enumerate(found.spec):
        if index and not row.is_computed and found.spec[index - 1].is_computed:
            table.add_section()
        table.add_row(Text(row.path), *(Text("-" if value is None else value) for value in row.values))
    return table


def _figures(found: RunComparison, rows: Sequence[FigureRow]) -> Table:
    table = _table("Evaluation, with 95 % intervals", (), "Figure")
    for index, label in enumerate(found.labels):
        table.add_column(Text(label), overflow="fold")
        if index:
            table.add_column(Text(f"less {found.labels[0]}"), overflow="fold")
    for row in rows:
        table.add_row(Text(" / ".join(row.labels)), *_figure_cells(row))
    return table


def _figure_cells(row: FigureRow) -> Iterator[Text]:
    for index, value in enumerate(row.values):
        yield Text(value_text(value, row.unit))
        difference = row.differences[index]
        if index:
            style = "" if difference is None else COLOURS.get(difference.verdict, "")
            words = verdict_text(row, index)
            shown = difference_text(difference, row.unit)
            yield Text(f"{shown}\n{words}" if words else shown, style=style)
