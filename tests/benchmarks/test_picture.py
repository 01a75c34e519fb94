"""The picture of speeds shows the figures of the log."""

import re

from picture import BENCHMARKS, DOCS, THEMES, measurements, picture


def test_the_pictures_of_the_documentation_are_drawn_from_the_results() -> None:
    for name, theme in THEMES.items():
        assert (DOCS / name).read_text(encoding="utf-8") == picture(measurements(), theme), "run benchmarks/picture.py"


def test_every_figure_of_the_picture_stands_in_its_section_of_the_log() -> None:
    for row in measurements():
        page, anchor = row.log.split("#")
        log = (BENCHMARKS / "log" / page).read_text(encoding="utf-8")
        sections = {
            re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")): f"{title} {text}"
            for title, text in re.findall(r"^#+ (.+)\n((?:(?!#).*\n)*)", log, re.MULTILINE)
        }
        assert {f"{turn:,}" for turn in row.turns} <= set(re.findall(r"[\d,.]*\d", sections[anchor])), row
        assert f"{row.tool} {row.version}".strip() in sections[anchor], row
