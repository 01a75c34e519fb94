"""The functions of each build of nmtkit/native.

A tensor is passed as the address of its first element and must be contiguous; shapes and types are in the comments. All
functions may raise MemoryError. The long ones release the global interpreter lock.
"""

# Capsules, to be kept and passed on.
class Matrix: ...
class RowMatrix: ...
class Model: ...
class DecoderState: ...

def matrix(weight: int, bias: int, rows: int, columns: int, int8: bool) -> Matrix:
    """Pack a copy of W (N, K) and b (N,), fp32; b may be 0 for none. With `int8`, W and the inputs are quantized.

    MemoryError for more than 2^30 rows or 2^24 columns, or 2^16 columns in int8.
    """

def row_matrix(weight: int, bias: int, rows: int, columns: int, int8: bool) -> RowMatrix:
    """As `matrix`, for products with chosen rows. In fp32, W is not copied and must outlive the result."""

def multiply(matrix: Matrix, x: int, rows: int, y: int, threads: int) -> None:
    """Compute x·Wᵀ + b for x (rows, K) into y (rows, N), fp32."""

def model(
    d_model: int,
    heads: int,
    d_k: int,
    d_v: int,
    pre_norm: bool,
    activation: str,
    source_embedding: int,
    target_embedding: int,
    encoder_layers: int,
    decoder_layers: int,
    matrices: list[Matrix],
    norms: list[tuple[int, int]],
    epsilon: float,
) -> Model:
    """A Transformer. Everything passed must outlive it. IndexError for an activation other than relu, gelu and swish.

    Embeddings (W, D), fp32. Matrices and layer norms (gain and bias, (D,) each) come in the order of computation: for
    each encoder layer W_QKV, W_O and the feed-forward network's two; for each decoder layer W_QKV, W_O, then W_Q, W_KV,
    W_O of cross-attention, and the feed-forward network's two; at last the output matrix.
    """

def encode(
    model: Model, source: int, lengths: int, sentences: int, width: int, positions: int, threads: int
) -> DecoderState:
    """Encode source (B, width) with lengths (B,), int64, at positions (width, D), fp32, for a search of one row a sentence.

    The model must outlive the search. IndexError for a length outside 1..width.
    """

def restrict_to(state: DecoderState, output: RowMatrix, ids: int, starts: int, sentences: int) -> None:
    """Restrict the output of sentence b to the ids (int32) from starts[b] to starts[b + 1] - 1 (int64, (sentences + 1,)).

    `output` is the output matrix and must outlive the search. The ids of a sentence are in ascending order. IndexError
    for ids that are never output or do not exist, for a sentence without ids, and for a wrong number of sentences.
    """

def reorder(state: DecoderState, origins: int, rows: int) -> None:
    """Make row i continue row origins[i], int64. IndexError for a row that does not exist."""

def step(state: DecoderState, tokens: int, rows: int, position: int, log_probs: int, threads: int) -> None:
    """Decode tokens (R,), int64, at a position (D,) into the log-probabilities (R, W) of the next tokens, fp32:
    -∞ for ids that are never output.

    IndexError for a token outside the vocabulary, or another number of rows than the search has.
    """

def best_step(
    state: DecoderState,
    tokens: int,
    rows: int,
    position: int,
    excluded: tuple[int, ...],
    k: int,
    log_probs: int,
    best_tokens: int,
    threads: int,
) -> None:
    """As `step`, but only the k best next tokens of each row (R, k), int64, and their log-probabilities (R, k).

    Tokens in `excluded` count as impossible. IndexError also for k > W.
    """


def top_k(scores: int, rows: int, width: int, k: int, values: int, indices: int, threads: int) -> None:
    """The k highest of each row of scores (rows, width) into values (rows, k) and indices (rows, k), int64.

    In descending order; of equal scores the first. NaN counts as -∞. IndexError for k > width.
    """

# Operators of training: their tensors are in bf16 if `bf16` is set, otherwise in fp32, unless stated differently.

def cross_entropy(
    bf16: bool,
    logits: int,
    rows: int,
    width: int,
    targets: int,
    smoothing: float,
    learning: bool,
    losses: int,
    threads: int,
) -> None:
    """-log p(target) and the mean of -log p into losses (rows, 2), fp32, for logits (rows, width) and targets (rows,),
    int64. With `learning`, the gradient of the smoothed loss replaces the logits, otherwise they are overwritten.

    Ids that are never output have no part in either. IndexError for a target outside the vocabulary, and for a width
    without these ids.
    """

def add(bf16: bool, x: int, y: int, count: int, threads: int) -> None:
    """y += x for `count` elements. y is in fp32."""

def dropout(
    bf16: bool, x: int, residual: int, bits: int, threshold: float, scale: float, count: int, y: int, threads: int
) -> None:
    """Compute y = residual + x · mask for `count` elements. The residual may be 0 for none.

    The mask is `scale`, or 0 where bits (count,), int16, are below the threshold.
    """

def residual_norm(
    bf16: bool,
    x: int,
    y: int,
    bits: int,
    threshold: float,
    scale: float,
    gain: int,
    bias: int,
    epsilon: float,
    rows: int,
    width: int,
    total: int,
    moments: int,
    result: int,
    threads: int,
) -> None:
    """Compute total = x + y · mask, the result LayerNorm(total), and for the backward pass the moments (rows, 2).

    Gain, bias and moments are in fp32. The mask is that of `dropout`, or 1 if `bits` is 0.
    """

def residual_norm_backward(
    bf16: bool,
    gradient: int,
    bits: int,
    threshold: float,
    scale: float,
    gain: int,
    total: int,
    moments: int,
    rows: int,
    width: int,
    grad_x: int,
    grad_y: int,
    grad_gain: int,
    grad_bias: int,
    threads: int,
) -> None:
    """From the gradient of the result, compute those of x, y, gain and bias. Without a mask grad_y may be grad_x.

    Those of gain and bias are in fp32.
    """

# B, H, K d_k, V d_v, and where the queries and the keys of each sentence begin and end, both (B + 1,) int32
AttentionShape = tuple[int, int, int, int, int, int]
Heads = tuple[int, int]  # (B, Q or S, H·width) as an address and the elements from a position to the next

def attention_weights_size(shape: AttentionShape) -> int:
    """The numbers of the attention weights that `attention` keeps."""

def attention(
    bf16: bool,
    shape: AttentionShape,
    causal: bool,
    mask: int,
    queries: Heads,
    keys: Heads,
    values: Heads,
    heads: Heads,
    weights: int,
    threads: int,
) -> None:
    """Compute softmax(Q·Kᵀ / √K)·V into `heads`, and the weights, fp32, for the backward pass.

    `mask` of all keys, bool, is True for those that may be attended to; 0 for all.
    """

def attention_backward(
    bf16: bool,
    shape: AttentionShape,
    causal: bool,
    mask: int,
    queries: Heads,
    keys: Heads,
    values: Heads,
    gradient: Heads,
    weights: int,
    grad_queries: Heads,
    grad_keys: Heads,
    grad_values: Heads,
    threads: int,
) -> None:
    """From the gradient of `heads`, compute those of queries, keys and values."""
