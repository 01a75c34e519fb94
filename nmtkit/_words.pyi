"""The compiled cache of encoded words (nmtkit/native/word_cache.h). All functions may raise MemoryError."""

class Cache: ...  # a capsule

def cache(line_end: bytes, max_bytes: int) -> Cache:
    """Make a cache of two generations of about `max_bytes` each. `line_end` is the id at the end of a line."""

def find_new(cache: Cache, text: bytes) -> list[str]:
    """Look up the words of lines that a line feed ends, and return those that must be encoded for `encode`.

    Raises UnicodeDecodeError for a word that is not UTF-8.
    """

def encode(cache: Cache, ids: bytes, lengths: bytes) -> bytes:
    """The ids of the text of the last `find_new`.

    `ids` are the ids of its new words, one after the other, as wide as `line_end`; `lengths` are their numbers for each
    word, int32. Raises ValueError if these do not fit.
    """
