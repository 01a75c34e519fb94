"""Statistics over the seeds of a recipe, compared with published tables and with simulation."""

import math
import random
import statistics

import pytest
import seeds


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (10, 2.2281), (12, 2.1788), (30, 2.0423)],
)
def test_students_t_is_that_of_the_tables(freedom: int, t: float) -> None:
    assert seeds.student_t(freedom) == pytest.approx(t, abs=1e-4)


def test_the_spread_is_pooled_over_settings_with_several_seeds() -> None:
    spread = seeds.pooled([[1.0, 3.0], [10.0, 14.0, 12.0], [100.0]])
    assert spread.freedom == 3
    assert spread.deviation == pytest.approx(math.sqrt((1 + 1 + 4 + 4 + 0) / 3))


def test_a_single_seed_has_no_interval() -> None:
    alone = seeds.mean([7.0], seeds.pooled([[7.0], [8.0]]))
    assert alone.half_width is None
    assert not alone.excludes(0.0)


def test_an_interval_of_a_difference_covers_the_true_one_in_95_percent_of_experiments() -> None:
    draw = random.Random(1)
    covered = 0
    for _ in range(2000):
        base, other = ([draw.gauss(center, 2.0) for _ in range(3)] for center in (5.0, 6.0))
        covered += not seeds.difference(other, base, seeds.pooled([base, other])).excludes(1.0)
    assert statistics.NormalDist(0.95, math.sqrt(0.95 * 0.05 / 2000)).cdf(covered / 2000) == pytest.approx(
        0.5, abs=0.49
    )
