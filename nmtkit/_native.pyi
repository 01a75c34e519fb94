"""The functions of each build of nmtkit/native.

Functions of the search take contiguous arrays: ids and row numbers are int64, all else fp32. They raise TypeError
for other types, IndexError for other sizes. Functions of training take the address of the first element of contiguous
tensors; comments give shapes and types. All functions may raise MemoryError. The long ones release the GIL.
"""

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float32]
_Ints = NDArray[np.int64]

# Capsules, to be kept and passed on.
class Matrix: ...
class Model: ...
class DecoderState: ...

def matrix(weight: _Floats, bias: _Floats | None, number_format: str) -> Matrix:
    """Pack a copy of W (N, K) and b (N,). With "int8", W and the inputs are quantized, unless W has more than 2^16
    columns.

    Raises MemoryError for more than 2^30 rows or 2^24 columns, and IndexError for a format other than fp32 and int8.
    """

def quantize(weight: _Floats, integers: NDArray[np.int8], scales: _Floats) -> None:
    """Quantize W (N, K) as "int8" does on this CPU: into integers (N, K), and scales (N,) by which to multiply them."""

def multiply(matrix: Matrix, x: _Floats, y: _Floats, threads: int) -> None:
    """Compute x·Wᵀ + b for x (…, K) into y (…, N)."""

def model(
    d_model: int,
    heads: int,
    d_k: int,
    d_v: int,
    pre_norm: bool,
    embedding_scale: float,
    norm_epsilon: float,
    rms_norm: bool,
    rotary: bool,
    activation: str,
    encoder_layers: int,
    decoder_layers: int,
    weights: dict[str, _Floats | tuple[NDArray[np.int8], _Floats]],
    number_format: str,
    threads: int,
) -> Model:
    """A Transformer of copied weights, by the names of parameters in nmtkit/model/transformer.py.

    Biases, and the norms of queries and keys, are optional. With `rotary`, positions below are (…, d_k): cosines, then
    sines. With "int8", matrices of products may be integers with scales, as from `quantize`. Raises IndexError for
    missing weights, an activation other than relu, gelu, swish and swiglu, or an unknown format.
    """

def encode(model: Model, source: _Ints, lengths: _Ints, positions: _Floats, threads: int) -> DecoderState:
    """Encode source (B, S) with lengths (B,) at positions (S, D), for a search of one row a sentence.

    The model must outlive the search. Raises IndexError for a length outside 1..S and ids outside the vocabulary.
    """

def restrict_to(model: Model, state: DecoderState, ids: NDArray[np.int32], starts: _Ints) -> None:
    """Restrict the output of sentence b to the ids from starts[b] to starts[b + 1] - 1, for starts (B + 1,).

    The ids of a sentence are in ascending order. Raises IndexError for ids that are never output or do not exist, for a
    sentence without ids, and for a wrong number of sentences.
    """

def reorder(state: DecoderState, origins: _Ints) -> None:
    """Make row i continue row origins[i], for origins (R,). Raises IndexError for a row that does not exist."""

def step(state: DecoderState, tokens: _Ints, position: _Floats, log_probs: _Floats, threads: int) -> None:
    """Decode tokens (R,) at a position (D,) into the log-probabilities (R, W) of the next tokens: -∞ for ids that are
    never output.

    Raises IndexError for a token outside the vocabulary, or another number of rows than the search has.
    """

def best_step(
    state: DecoderState,
    tokens: _Ints,
    position: _Floats,
    excluded: tuple[int, ...],
    log_probs: _Floats,
    best_tokens: _Ints,
    threads: int,
) -> None:
    """As `step`, but only the k best next tokens of each row (R, k) and their log-probabilities (R, k).

    Tokens in `excluded` count as impossible. Also raises IndexError for k > W.
    """

def record_attention(state: DecoderState, layer: int, weights: _Floats) -> None:
    """Record the attention of a decoder layer to the source during the next step.

    Its mean over the heads is added to weights (R, longest source), which must exist until then.
    """

def attend(state: DecoderState, tokens: _Ints, position: _Floats, threads: int) -> None:
    """Decode tokens (R,) only as far as the attention to record. All steps of a search must be of this kind."""

def top_k(scores: _Floats, values: _Floats, indices: _Ints, threads: int) -> None:
    """The k highest of each row of scores (R, W) into values (R, k) and indices (R, k).

    In descending order; of equal scores the first. NaN counts as -∞. Raises IndexError for k > W.
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

    Ids that are never output have no part in either. Raises IndexError for a target outside the vocabulary, and for a
    width without these ids.
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
