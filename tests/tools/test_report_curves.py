"""Curves: themed SVG with the right points under the pointer."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from paceline.tools.report.html import HEIGHT, MAX_POINTS, WIDE, ChartAxes, ChartLine, draw_chart, smooth_values


def line(values, name="loss", **look) -> ChartLine:
    return ChartLine(name, list(range(len(values))), values, [f"step {step}" for step in range(len(values))], 0, **look)


def draw(*lines, **options):
    x_end = max((len(one.x) for one in lines), default=1)
    axes = {name: options.pop(name) for name in ChartAxes._fields if name in options}
    shown = ChartAxes("step", x_end, **axes)
    return draw_chart("Chart", lines, shown, value_text=lambda _, value: f"{value:g}", **options)


def test_a_drawing_is_well_formed_and_has_no_colour_of_its_own():
    chart = draw(line([3.0, 2.0, 1.0]), line([1.0, 2.0, 3.0], "a<b>&$c$"), levels=[("target", 2.0)])
    ElementTree.fromstring(str(chart.svg).replace("<svg ", '<svg xmlns:xlink="x" ', 1))
    assert "var(--series-1)" in chart.svg and "var(--muted)" in chart.svg and "var(--grid)" in chart.svg
    assert re.findall(r"#[0-9a-f]{6}\b", chart.svg) == []
    assert "a&lt;b&gt;&amp;$c$" in chart.svg


def test_hover_points_lie_where_the_curve_was_drawn():
    chart = draw(line([0.0, 5.0, 10.0]))
    points = chart.hover["lines"][0]["points"]
    assert [(text, at) for _, _, text, at in points] == [("0", "step 0"), ("5", "step 1"), ("10", "step 2")]
    assert all(0 < x < WIDE and 0 < y < HEIGHT for x, y, _, _ in points)
    path = max(re.findall(r'd="(M [^"]*)"', str(chart.svg)), key=lambda d: (d.count("L") == 2, len(d)))
    drawn = [tuple(map(float, pair)) for pair in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)]
    assert [pytest.approx(pair, abs=0.1) for pair in drawn] == [(x, y) for x, y, _, _ in points]


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, math.nan]])
def test_nothing_to_draw_is_no_chart(values):
    assert draw(line(values)) is None


def test_gaps_are_neither_drawn_nor_hovered():
    chart = draw(line([1.0, math.nan, 3.0, math.inf, 5.0]))
    assert [text for _, _, text, _ in chart.hover["lines"][0]["points"]] == ["1", "3", "5"]


def test_a_single_point_is_marked():
    assert "<use" in draw(line([1.0])).svg
    assert "<use" not in draw(line([1.0, 2.0, 3.0])).svg


def test_long_runs_are_thinned_and_keep_their_ends():
    chart = draw(line([float(value) for value in range(100_000)]))
    texts = [text for _, _, text, _ in chart.hover["lines"][0]["points"]]
    assert len(texts) == MAX_POINTS and texts[0] == "0" and texts[-1] == "99999"
    assert len(chart.svg) < 40_000


def test_faint_lines_have_no_legend_and_no_tooltip():
    chart = draw(line([1.0, 2.0], style="faint"), line([1.0, 2.0]))
    assert [one["name"] for one in chart.hover["lines"]] == ["loss"]
    assert "loss" not in chart.svg


@pytest.mark.parametrize(("values", "wanted"), [([80.0, 8.0, 0.8], True), ([8.0, 0.8], False), ([80.0, 8.0, 0.0], False)])
def test_positive_values_that_are_far_apart_have_equal_distances_for_equal_factors(values, wanted):
    chart = draw(line(values), by_factor=True, about="smoothed")
    first, second, *rest = (y for _, y, _, _ in chart.hover["lines"][0]["points"])
    assert chart.about == ("smoothed; logarithmic" if wanted else "smoothed")
    assert not rest or (second - first == pytest.approx(rest[0] - second, abs=0.2)) == wanted
    assert not wanted or all(f">{tick}<" in chart.svg for tick in ("1", "10", "50"))


def test_drawing_twice_gives_the_same_bytes():
    assert draw(line([1.0, 2.0])) == draw(line([1.0, 2.0]))


def test_smoothing_starts_unbiased_and_does_not_spread_a_gap():
    assert smooth_values([4.0, 4.0, 4.0], 0.9) == pytest.approx([4.0, 4.0, 4.0])
    result = smooth_values([1.0, math.nan, 3.0], 0.5)
    assert result[0] == 1.0 and math.isnan(result[1]) and result[2] == pytest.approx((0.5 * 0.5 + 1.5) / 0.75)
    assert smooth_values([1.0, 9.0], 0.0) == [1.0, 9.0]
