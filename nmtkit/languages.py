"""The languages of the two sides of a dataset or a model."""

SEVERAL = "mul"  #: ISO 639-2: text of several languages, told apart by tags
MAX_LANGUAGE = 255  #: characters: languages are parts of file names


def is_language(name: object) -> bool:
    """Whether `name` can name a language, and so end a file name."""
    return isinstance(name, str) and 0 < len(name) <= MAX_LANGUAGE and "/" not in name and name.isprintable()


def is_direction(source: object, target: object) -> bool:
    """Whether the names can be those of the two sides: two languages, or `mul` on both sides."""
    return is_language(source) and is_language(target) and (source != target or source == SEVERAL)


def side_names(languages: tuple[str, str]) -> tuple[str, str]:
    """Names that differ for the two sides, for files and reports: the languages, or `source` and `target`."""
    return languages if languages[0] != languages[1] else ("source", "target")


def includes(languages: tuple[str, str], others: tuple[str, str]) -> bool:
    """Whether each of `languages` is `mul` or the same as its counterpart in `others`."""
    return all(own in (SEVERAL, other) for own, other in zip(languages, others, strict=True))
