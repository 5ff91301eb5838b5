"""Pieces of a self-contained page: templates with one frame and style (frame.html.jinja), and charts as inline SVG.

matplotlib draws the charts (ticks, scales, layout) in stand-in colors, which are then replaced by CSS variables, so that
one drawing serves a light and a dark page. Text stays text.
"""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

# Height of a figure, and widths for one, two and three charts a row, in points: the units of the SVG's viewBox.
HEIGHT = 230
FULL, WIDE, NARROW = 1060, 520, 350
# More points than this cannot be told apart in a drawing of this width.
MAX_POINTS = 400
# Positive values of one chart that are this many times apart want a logarithmic axis: on another one the small ones are a line.
FACTOR = 20
_INK, _GRID = "#a000f0", "#a000f1"
_SERIES = tuple(f"#a0000{digit}" for digit in range(1, 8))
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.4)),
    (0, (6, 2, 1, 2)),
    (0, (10, 3)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (1, 3)),
)
_MARKERS = "osD^vPX"
_VARIABLES = {
    _INK: "var(--muted)",
    _GRID: "var(--grid)",
    **{color: f"var(--series-{place + 1})" for place, color in enumerate(_SERIES)},
}


def render_page(template: str, content: Mapping[str, Any], own: Mapping[str, str] = {}) -> str:
    """A page by a template of this folder or of check/, with its values.

    own  templates from elsewhere: name -> text
    """
    here = Path(__file__).parent
    # Everything is escaped: class names and paths come from other people's folders.
    templates = Environment(
        loader=ChoiceLoader([DictLoader(own), FileSystemLoader([here, here / "check"])]),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined,
    )  # fmt: skip
    return templates.get_template(template).render(content)


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart: points with the same place in `x`, `y` and `at`."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    at: Sequence[str]  # heads of the tooltips: "step 1,200, epoch 3.1"
    color: int
    # Faint: the unsmoothed values behind a line, without legend and tooltip; dots: few points, marked.
    style: Literal["solid", "bold", "faint", "dots"] = "solid"
    dash: int = 0  # number of its pattern of dashes, for those who see no colors


@dataclass(frozen=True)
class Chart:
    """A drawn chart: SVG for the page, and for each line the pixel positions and texts that hovering shows."""

    title: str
    svg: Markup
    hover: dict[str, Any] = field(default_factory=dict)
    about: str = ""


class ChartAxes(NamedTuple):
    """What a chart's axes show."""

    x_label: str
    x_end: float  # charts of one page share it
    percent: bool = False  # y shows fractions times 100
    from_zero_to: float | None = None  # y begins at 0 and shows at least up to here
    by_factor: bool = False  # y is logarithmic where all values are positive and far apart; a line beside the title says so


def draw_chart(
    title: str,
    lines: Sequence[ChartLine],
    shown: ChartAxes,
    *,
    value_text: Callable[[str, float], str],
    levels: Sequence[tuple[str, float]] = (),
    mark: tuple[float, str] | None = None,
    about: str = "",
    width: int = WIDE,
) -> Chart | None:
    """Draw one chart; None when no line has a finite point.

    value_text  (line name, value) -> text of the tooltip
    levels      dashed horizontal lines, such as targets, with their labels
    mark        a dashed vertical line, with its label
    about       a line beside the title
    """
    drawn = [line for line in (_thinned(line) for line in lines) if any(map(math.isfinite, line.y))]
    if not drawn:
        return None
    values = [value for line in drawn for value in line.y if math.isfinite(value)]
    by_factor = shown.by_factor and min(values) > 0 and max(values) >= FACTOR * min(values)
    with _quiet():
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 9.5}
    with _quiet(), matplotlib.rc_context({**settings, "text.parse_math": False, "path.simplify": False}):
        figure = Figure(figsize=(width / 72, HEIGHT / 72), dpi=72, layout="constrained")
        axes = figure.add_subplot()
        for line in drawn:
            axes.plot(line.x, line.y, color=_SERIES[line.color % len(_SERIES)], label=line.name, **_look(line))
        for index, (text, level) in enumerate(levels):  # labels alternate between the sides: levels may lie close
            axes.axhline(level, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
            edge, side, indent = (1, "right", -2) if index % 2 == 0 else (0, "left", 2)
            axes.annotate(text, (edge, level), (indent, 3), ("axes fraction", "data"), "offset points", ha=side, color=_INK)
        if mark is not None:
            axes.axvline(mark[0], color=_INK, linewidth=1, linestyle=(0, (4, 3)))
            side, indent = ("left", 4) if mark[0] < shown.x_end / 2 else ("right", -4)
            axes.annotate(
                mark[1], (mark[0], 0), (indent, 4), ("data", "axes fraction"), "offset points", ha=side, color=_INK
            )
        _set_y(axes, shown, span=max(values) / min(values) if by_factor else 0)
        axes.set_xlabel(shown.x_label, color=_INK)
        axes.xaxis.set_major_locator(MaxNLocator(width // 65, integer=shown.x_end >= 8, steps=[1, 2, 5, 10]))
        axes.set_xlim(-0.015 * shown.x_end, 1.015 * shown.x_end)
        axes.grid(axis="y", color=_GRID, linewidth=0.8)
        axes.tick_params(which="both", length=0, labelcolor=_INK)
        for spine in axes.spines.values():
            spine.set_visible(False)
        named = [line for line in drawn if line.style != "faint"]
        if len(named) > 1:
            handles = [handle for handle, line in zip(axes.lines, drawn) if line.style != "faint"]
            figure.legend(
                handles, [line.name for line in named], loc="outside upper left", ncols=5 if width > NARROW else 4,
                frameon=False, labelcolor=_INK, handlelength=1.2, columnspacing=1.4, borderpad=0,
            )  # fmt: skip
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    hover = {
        "width": width,
        "top": round(HEIGHT - axes.bbox.y1, 1),
        "bottom": round(HEIGHT - axes.bbox.y0, 1),
        "lines": [_hover_line(line, axes.transData.transform, value_text) for line in named],
    }
    beside = "; ".join(filter(None, (about, "logarithmic" if by_factor else "")))
    return Chart(title, Markup(_themed(buffer.getvalue(), title)), hover, beside)


def _set_y(axes: Any, shown: ChartAxes, *, span: float) -> None:
    """The ticks of the y axis; span: from its smallest value to the largest, of a logarithmic one, else 0."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axes.yaxis.set_major_locator(MaxNLocator(5))
    if span:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if span < 300 else (1,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    if shown.percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    if shown.from_zero_to is not None and not span:
        axes.set_ylim(0, max(axes.get_ylim()[1], shown.from_zero_to) or 1)


def smooth_values(values: Sequence[float], strength: float) -> list[float]:
    """Exponential moving average that starts unbiased; non-finite values leave a gap and do not spread.

    strength  0 (none) up to 1: the share of the past in each point
    """
    total = weight = 0.0
    result = []
    for value in values:
        if math.isfinite(value):
            total = strength * total + (1 - strength) * value
            weight = strength * weight + (1 - strength)
        result.append(total / weight if math.isfinite(value) else math.nan)
    return result


def _thinned(line: ChartLine) -> ChartLine:
    """At most MAX_POINTS points, evenly chosen, first and last among them."""
    count = len(line.x)
    if count <= MAX_POINTS:
        return line
    keep = [round(index * (count - 1) / (MAX_POINTS - 1)) for index in range(MAX_POINTS)]
    x, y, at = ([values[index] for index in keep] for values in (line.x, line.y, line.at))
    return replace(line, x=x, y=y, at=at)


def _look(line: ChartLine) -> dict[str, Any]:
    if line.style == "faint":
        return {"linewidth": 1, "alpha": 0.3, "zorder": 1}
    dashed: dict[str, Any] = {"linestyle": _DASHES[line.dash % len(_DASHES)]}
    if line.style == "bold":
        return {"linewidth": 3.5, "zorder": 3, **dashed}
    few = sum(map(math.isfinite, line.y)) <= 2  # a line through one point is invisible
    marker = _MARKERS[line.dash % len(_MARKERS)] if line.style == "dots" or few else None
    return {"linewidth": 2, "zorder": 2, "marker": marker, "markersize": 4, **dashed}


def _hover_line(
    line: ChartLine, to_pixels: Callable[[Any], Any], value_text: Callable[[str, float], str]
) -> dict[str, Any]:
    points = [
        [round(float(pixel[0]), 1), round(HEIGHT - float(pixel[1]), 1), value_text(line.name, y), at]
        for pixel, y, at in zip(to_pixels(list(zip(line.x, line.y))), line.y, line.at)
        if all(map(math.isfinite, pixel))
    ]
    return {"name": line.name, "color": _VARIABLES[_SERIES[line.color % len(_SERIES)]], "points": points}


def _themed(svg: str, title: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    # ids of groups repeat from chart to chart, and a page may have each only once; clip paths are salted and stay.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{title}">', svg, count=1
    )
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    return re.sub(r">\s+<", "><", svg)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence matplotlib's log lines on its font cache and on a read-only home."""
    log = logging.getLogger("matplotlib")
    was = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(was)
