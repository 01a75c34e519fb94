"""Small files of fastText classifiers with the labels of two languages."""

import struct

HEADER = struct.Struct("<2i12id")
WORDS, LABELS, DIM, BUCKETS = ("the", "der"), ("__label__en", "__label__de"), 4, 10


def classifier(quantized: bool = False, **changes: int) -> bytes:
    """A model whose weights are all 0. `changes` are numbers of its header and dictionary by name."""
    numbers = {
        **{"magic": 793712314, "version": 12, "dim": DIM, "ws": 5, "epoch": 1, "min_count": 1, "neg": 5},
        **{"word_ngrams": 1, "loss": 3, "model": 3, "bucket": BUCKETS, "minn": 2, "maxn": 3, "lr_update_rate": 100},
    }
    sizes = {"size": len(WORDS + LABELS), "words": len(WORDS), "labels": len(LABELS), "tokens": 100, "pruned": -1}
    for name, number in changes.items():
        (numbers if name in numbers else sizes)[name] = number
    entries = [(word, kind) for kind, words in enumerate((WORDS, LABELS)) for word in words]
    dictionary = b"".join(word.encode() + struct.pack("<bqb", 0, 7, kind) for word, kind in entries)
    rows = len(WORDS) + (BUCKETS if sizes["pruned"] < 0 else sizes["pruned"])
    parts = [
        HEADER.pack(*numbers.values(), 1e-4),
        struct.pack("<3i2q", *sizes.values()),
        dictionary,
        struct.pack("<b", quantized),
        _quantized(rows) if quantized else _dense(rows),
        struct.pack("<b", 0),
        _dense(len(LABELS)),
    ]
    return b"".join(parts)


def _dense(rows: int) -> bytes:
    return struct.pack("<2q", rows, DIM) + bytes(4 * rows * DIM)


def _quantized(rows: int) -> bytes:
    """Codes of two numbers each, and norms."""
    quantizer = struct.pack("<4i", DIM, DIM // 2, 2, 2) + bytes(4 * 256 * DIM)
    norms = bytes(rows) + struct.pack("<4i", 1, 1, 1, 1) + bytes(4 * 256)
    return struct.pack("<b2qi", 1, rows, DIM, rows * DIM // 2) + bytes(rows * DIM // 2) + quantizer + norms
