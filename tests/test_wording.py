"""How messages put things."""

from nmtkit.wording import counted


def test_numbers_of_things_are_english() -> None:
    assert [counted(n, "line") for n in range(3)] == ["no lines", "1 line", "2 lines"]
    assert [counted(n, "batch", "batches") for n in range(3)] == ["no batches", "1 batch", "2 batches"]
