"""The report's plots, as PNG: one function each, in a light and a dark theme; None where there is nothing to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import NamedTuple, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from crag_dspy.types import Action
from optimize.dataset import ACTION_OF
from optimize.evaluate import NEEDS, Outcome
from optimize.proof import Point
from optimize.reliability import reliability_table

DPI = 160
BINS = 5  # a dev set of some dozens leaves ten bins empty
ACTIONS: tuple[Action, ...] = get_args(Action)
LABELS = {"none": "nobody knows"}


class Theme(NamedTuple):
    """Colours; the background is the page's own."""

    text: str
    faint: str
    before: str
    after: str
    others: tuple[str, ...]


LIGHT = Theme("#1f2328", "#c4cad1", "#8a939d", "#0b66c3", ("#b3570e", "#7a3e9d", "#2d7d46"))
DARK = Theme("#e6e9ec", "#4a525b", "#9aa4af", "#6cb6ff", ("#f0a35e", "#c79bea", "#7fcf97"))


class Picture(NamedTuple):
    """One plot in both themes."""

    light: bytes
    dark: bytes


def routes(outcomes: Sequence[Outcome]) -> Picture | None:
    """Show which action was taken for which need, in questions; frames mark where they belong."""
    known = [(o.row.need, o.answer.action) for o in outcomes if o.row.need and o.answer]
    needs = [need for need in NEEDS if any(need == mine for mine, _ in known)]
    if not known:
        return None
    counts = np.array([[known.count((need, action)) for action in ACTIONS] for need in needs])
    shares = counts / counts.sum(axis=1, keepdims=True)

    def draw(axes: Axes, theme: Theme) -> None:
        cells = np.zeros((*shares.shape, 4))
        cells[..., :3] = to_rgb(theme.after)
        cells[..., 3] = 0.06 + 0.5 * shares  # never so strong that the number is hard to read
        axes.imshow(cells, aspect="auto")
        for row, need in enumerate(needs):
            for column, action in enumerate(ACTIONS):
                axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=theme.text, fontsize=12)
                if ACTION_OF[need] == action:
                    place = (column - 0.46, row - 0.44)
                    axes.add_patch(Rectangle(place, 0.92, 0.88, fill=False, linewidth=2.2, edgecolor=theme.others[0]))
        axes.set_xticks(range(len(ACTIONS)), ACTIONS)
        axes.set_yticks(range(len(needs)), [LABELS.get(need, need) for need in needs])
        axes.set_xlabel("action taken")
        axes.set_ylabel("what the question needs")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    return _picture(draw, (5.6, 0.9 + 0.62 * len(needs)))


def needs(scores: Mapping[str, Mapping[str, float]]) -> Picture | None:
    """Show the share of answers right by what the questions need, a bar for each program."""
    found = [need for need in NEEDS if all(f"answers_right_{need}" in values for values in scores.values())]
    if not found:
        return None

    def draw(axes: Axes, theme: Theme) -> None:
        width = 0.8 / len(scores)
        for i, ((name, values), colour) in enumerate(zip(scores.items(), (theme.before, theme.after, *theme.others), strict=False)):
            places = [place + (i - (len(scores) - 1) / 2) * width for place in range(len(found))]
            shares = [values[f"answers_right_{need}"] for need in found]
            bars = axes.bar(places, shares, 0.92 * width, color=colour, label=name)
            axes.bar_label(bars, [f"{100 * share:.0f}" for share in shares], color=theme.text, fontsize=9, padding=2)
        axes.set_xticks(range(len(found)), [LABELS.get(need, need) for need in found])
        axes.set_ylim(0, 1.3)  # room for the legend
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_ylabel("answers right")
        axes.legend(loc="upper center", frameon=False, labelcolor=theme.text, fontsize=9.5, ncols=len(scores))

    return _picture(draw)


def thresholds(curve: Sequence[Point], before: Sequence[float], after: Sequence[float]) -> Picture | None:
    """Show what the routes are worth over the upper threshold, and which thresholds the two policies have."""
    if not curve:
        return None

    def draw(axes: Axes, theme: Theme) -> None:
        axes.plot([p.upper for p in curve], [p.worth for p in curve], color=theme.text, linewidth=2)
        for values, colour, label in ((before, theme.before, "uncompiled"), (after, theme.after, "compiled")):
            for i, value in enumerate(sorted(set(values))):
                old = colour == theme.before  # dashed and on top: what did not change shows both
                line = axes.axvline(value, color=colour, label=label if not i else None, zorder=3 if old else 2)
                line.set(linestyle="--" if old else "-", linewidth=1.4 if old else 2.4)
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=min(0.5, *(p.worth for p in curve)) - 0.05, top=1.02)
        axes.set_xlabel("upper threshold (relevance from which a passage is enough)")
        axes.set_ylabel("worth of the routes taken")
        _legend(axes, theme)

    return _picture(draw)


def reliability(before: Sequence[Outcome], after: Sequence[Outcome]) -> Picture | None:
    """Show the share of answers right over their confidence; the size of a point is how many answers it stands for."""
    tables = [
        [bin for bin in reliability_table(*_confidence(outcomes), bins=BINS) if bin.confidence is not None and bin.right is not None]
        for outcomes in (before, after)
    ]
    if not any(tables):
        return None

    def draw(axes: Axes, theme: Theme) -> None:
        axes.plot((0, 1), (0, 1), color=theme.faint, linewidth=1.2, zorder=1)
        axes.text(0.13, 0.05, "as sure as right", color=theme.text, fontsize=9, alpha=0.75)
        for table, colour, label, marker in zip(tables, (theme.before, theme.after), ("uncompiled", "compiled"), ("s", "o"), strict=True):
            if table:
                x, y = [bin.confidence or 0.0 for bin in table], [bin.right or 0.0 for bin in table]
                axes.plot(x, y, color=colour, linewidth=1.4, alpha=0.7, zorder=2)
                axes.scatter(x, y, [30 + 8 * bin.answers for bin in table], color=colour, marker=marker, label=label, zorder=3)
        axes.set_xlim(-0.03, 1.05)
        axes.set_ylim(-0.05, 1.08)
        axes.set_xlabel("confidence")
        axes.set_ylabel("share of answers right")
        _legend(axes, theme)

    return _picture(draw)


def _confidence(outcomes: Sequence[Outcome]) -> tuple[list[float], list[bool]]:
    answered = [(o.answer.confidence, o.right) for o in outcomes if o.answer and o.answer.status == "answered"]
    return [sure for sure, _ in answered], [right for _, right in answered]


def cost_quality(scores: Mapping[str, Mapping[str, float]]) -> Picture | None:
    """Show what the programs cost, in tokens per question, and how many answers are right."""
    points = {
        name: (found["prompt_tokens"] + found["completion_tokens"], found["answers_right"], found["lm_calls"])
        for name, found in scores.items()
        if {"prompt_tokens", "completion_tokens", "answers_right", "lm_calls"} <= found.keys()
    }
    if not points:
        return None

    def draw(axes: Axes, theme: Theme) -> None:
        most = max(tokens for tokens, *_ in points.values()) or 1.0
        colours = (theme.before, theme.after, *theme.others)
        for (name, (tokens, right, calls)), colour, marker in zip(points.items(), colours, "soD^v", strict=False):
            axes.scatter([tokens], [right], 80, color=colour, marker=marker, label=f"{name}, {calls:.1f} LM calls", zorder=3)
        axes.set_xlim(0, 1.12 * most)
        axes.set_ylim(-0.03, 1.1)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("tokens per question")
        axes.set_ylabel("share of answers right")
        axes.grid(color=theme.faint, linewidth=0.6, alpha=0.6)
        _legend(axes, theme)

    return _picture(draw)


def _legend(axes: Axes, theme: Theme) -> None:
    axes.legend(loc="best", frameon=False, labelcolor=theme.text, fontsize=9.5)


def _picture(draw: Callable[[Axes, Theme], None], size: tuple[float, float] = (5.6, 3.6)) -> Picture:
    return Picture(*(_png(draw, theme, size) for theme in (LIGHT, DARK)))


def _png(draw: Callable[[Axes, Theme], None], theme: Theme, size: tuple[float, float]) -> bytes:
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")  # no pyplot: nothing global, no window
    axes = figure.add_subplot()
    draw(axes, theme)
    for spine in axes.spines.values():
        spine.set_color(theme.faint)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=theme.text, labelsize=9.5)
    axes.xaxis.label.set_color(theme.text)
    axes.yaxis.label.set_color(theme.text)
    file = BytesIO()
    figure.savefig(file, format="png", transparent=True, metadata={"Software": None})
    return file.getvalue()
