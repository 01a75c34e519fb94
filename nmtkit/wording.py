"""How messages put things."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number of things that are named in the singular: no lines, 1 line, 2 lines."""
    return f"{count or 'no'} {noun if count == 1 else plural or noun + 's'}"
