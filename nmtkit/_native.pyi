"""What each build of nmtkit/native gives Python. A tensor is the address of its first number, and must be contiguous; its shape and
type are in the comments. All functions may raise MemoryError, and work without Python's lock."""

# Capsules: they can be held and handed on.
class Matrix: ...
class Model: ...
class Search: ...

def matrix(weight: int, bias: int, rows: int, columns: int, eight_bits: bool) -> Matrix:
    """W (N, K) and b (N), or 0 for none, fp32: copied into the layout of products. MemoryError for more than 2^30 rows, 2^24
    columns, or in eight bits 2^16 columns."""

def multiply(matrix: Matrix, x: int, rows: int, y: int, threads: int) -> None:
    """x·Wᵀ + b for x (n, K) into y (n, N), fp32."""

def model(
    d_model: int,
    heads: int,
    d_k: int,
    d_v: int,
    pre_norm: bool,
    source_embedding: int,
    target_embedding: int,
    encoder_layers: int,
    decoder_layers: int,
    matrices: list[Matrix],
    norms: list[tuple[int, int]],
    epsilon: float,
) -> Model:
    """A Transformer of matrices and norms (gain and bias) in the order in which a batch meets them: W_QKV, W_O and the
    feed-forward network's two of each encoder layer; W_QKV, W_O, then W_Q, W_KV, W_O to the source, and the two of each
    decoder layer; the output's. All must outlive it."""

def encode(
    model: Model, source: int, lengths: int, sentences: int, width: int, positions: int, threads: int
) -> Search:
    """A search for source (B, S) and the lengths of its sentences (B,), int64, with the encodings (S, D) of the positions.
    The model must outlive it. It has a row for each sentence. IndexError for a length that is not from 1 to S."""

def reorder(search: Search, origins: int, rows: int) -> None:
    """Row i goes on from row origins[i], int64. IndexError where there is no such row."""

def step(search: Search, tokens: int, rows: int, position: int, log_probs: int, threads: int) -> None:
    """Feed tokens (R,), int64, at a position whose encoding is (D,); the log-probabilities of the next ones go into
    (R, W). IndexError for other tokens than the W, or more or fewer than the search has rows."""

def best_step(
    search: Search,
    tokens: int,
    rows: int,
    position: int,
    excluded: tuple[int, ...],
    count: int,
    log_probs: int,
    best_tokens: int,
    threads: int,
) -> None:
    """As `step`, but of the next tokens without those in `never` the `count` best of each row (R, count), int64, and
    their log-probabilities. IndexError for a count beyond W, too."""

def log_softmax(x: int, rows: int, width: int, threads: int) -> None:
    """In place, of each row of x (n, W)."""

def best(scores: int, rows: int, width: int, count: int, values: int, columns: int, threads: int) -> None:
    """The `count` highest, W at most, of each row of scores (n, W) into values (n, count), highest first, of equal ones
    the first, with their columns, int64. IndexError for a count beyond W."""
