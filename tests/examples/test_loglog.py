"""Log-log plots and fitted exponents, and the measurements of Table 1."""

import math
import xml.etree.ElementTree as ET

import pytest
import table1
import torch
from loglog import HEIGHT, WIDTH, Curve, Panel, exponent, picture

SVG = "{http://www.w3.org/2000/svg}"
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


def test_a_plot_is_well_formed_and_has_each_curve_in_its_panel() -> None:
    curves = [Curve("n & n²", power(1, 2)), Curve("<n>", power(5, 1))]
    root = ET.fromstring(picture("Growth", [Panel("One", "n", "ms", curves), Panel("Two", "d", "MiB", curves[:1])]))
    assert root.tag == f"{SVG}svg"
    assert root.get("viewBox", "").startswith(f"0 0 {2 * WIDTH} ")
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts.count("n & n²") == texts.count("<n>") == 1  # in the legend
    assert {"One", "Two", "ms", "MiB", "64", "512", "1,000"} <= set(texts)
    first, second = (list(panel) for panel in root.iter(f"{SVG}g"))
    drawn = [[part.get("d", "") for part in panel if part.get("class") == "curve"] for panel in (first, second)]
    assert list(map(len, drawn)) == [2, 1]
    (x0, y0), (x1, y1) = coordinates(drawn[0][0])[0], coordinates(drawn[0][0])[-1]
    assert 0 < x0 < x1 < WIDTH
    assert HEIGHT > y0 > y1 > 0


def coordinates(path: str) -> list[tuple[float, float]]:
    numbers = [float(number) for number in path.removeprefix("M").replace(" L", " ").split()]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_a_power_law_is_a_straight_line() -> None:
    root = ET.fromstring(picture("", [Panel("", "", "", [Curve("", power(3, 1.7))])], columns=1))
    (panel,) = root.iter(f"{SVG}g")
    (path,) = [part.get("d", "") for part in panel if part.get("class") == "curve"]
    (x0, y0), *others = coordinates(path)
    slopes = [(y - y0) / (x - x0) for x, y in others]
    assert all(math.isclose(slope, slopes[0], rel_tol=0.01) for slope in slopes)


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
