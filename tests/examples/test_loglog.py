"""Log-log plots and fitted exponents, and the measurements of Table 1."""

import pytest
import table1
import torch
from loglog import Curve, Panel, exponent, plot

SIZES = [64, 128, 256, 512]


def power(factor: float, b: float) -> list[tuple[float, float]]:
    return [(x, factor * x**b) for x in SIZES]


@pytest.mark.parametrize("b", [-1.0, 0.0, 1.0, 1.5, 2.0])
def test_the_exponent_of_a_power_law_is_recovered(b: float) -> None:
    assert exponent(power(0.3, b)) == pytest.approx(b)


def test_the_exponent_can_be_fitted_to_the_largest_sizes_only() -> None:
    points = [(x, 1000 + x**2) for x in (1, 2, 4, 8, 2**20, 2**21, 2**22)]
    assert exponent(points, last=3) == pytest.approx(2)
    assert exponent(points) < 1.8


def test_symmetric_errors_do_not_change_the_exponent() -> None:
    points = [(x, y * factor) for (x, y), factor in zip(power(2, 1.5), (1.1, 1 / 1.1, 1 / 1.1, 1.1), strict=True)]
    assert exponent(points) == pytest.approx(1.5)


def test_each_panel_has_its_curves_and_the_legend_each_name_once() -> None:
    curves = [Curve("n & n²", power(1, 2)), Curve("<n>", power(5, 1))]
    figure = plot([Panel("One", "n", "ms", curves), Panel("Two", "d", "MiB", curves[1:])])
    first, second = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["One", "Two"]
    assert (first.get_xlabel(), first.get_ylabel()) == ("n", "ms")
    drawn = [[line.get_xydata().tolist() for line in axes.lines] for axes in (first, second)]  # type: ignore[union-attr]
    points = [list(map(list, curve.points)) for curve in curves]
    assert drawn == [points, points[1:]]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["n & n²", "<n>"]
    assert first.lines[1].get_color() == second.lines[0].get_color() != first.lines[0].get_color()


def test_both_axes_are_logarithmic() -> None:
    (axes,) = plot([Panel("", "", "", [Curve("", power(3, 1.7))])], columns=1).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_peak_memory_counts_only_tensors_that_exist_at_the_same_time() -> None:
    def work() -> None:
        first = torch.zeros(1 << 18)  # 1 MiB
        second = first + 1
        del first
        third = second + 1  # two at once, never three
        del second, third

    assert table1.peak_bytes(work) == pytest.approx(2 << 20, rel=0.01)


def test_the_memory_of_restricted_attention_is_proportional_to_the_length() -> None:
    layer = next(one for one in table1.LAYERS if one.complexity == "O(r·n·d)")
    memory = [table1.cost(layer, n, 64, 16, runs=1).mebibytes for n in SIZES]
    assert exponent(list(zip(SIZES, memory, strict=True))) == pytest.approx(1, abs=0.05)
