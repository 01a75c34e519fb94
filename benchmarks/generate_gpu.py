"""Benchmark: three implementations of beam search on a GPU, with throughput and the GPU's idle time.

    python benchmarks/generate_gpu.py --arch transformer_base --batch 2048
    python benchmarks/generate_gpu.py --checkpoint averaged.pt --text test.en --batch 1024

* plain: `TorchTransformer.step`, as in nmt-generate; the cache grows by one position per step, and rows come and go.
* static: fixed memory for the maximum number of rows of a batch; the cache grows by whole blocks of positions, and
  unused positions are masked. It computes more, but every step runs the same operators on the same memory.
* graph: the static step captured as a CUDA graph, which the host launches with one call (GPU only).

Without a checkpoint, model and text are random, and outputs have --length pieces. All implementations must give the
same outputs, which is checked first. In bf16 a few may differ by rounding; the benchmark prints how many are equal.
For a comparison with CTranslate2, see benchmarks/generate.py --device cuda.
"""

import statistics
import time
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

import click
import torch
from gpu import idle_share
from torch import Tensor
from torch.nn import functional as F

from nmtkit.checkpoint import load_checkpoint
from nmtkit.data.batch import pad
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.search import search
from nmtkit.inference.decoder_step import attend_together
from nmtkit.inference.protocol import InferenceModel
from nmtkit.inference.torch_inference import log_softmax
from nmtkit.inference.torch_transformer import TorchTransformer
from nmtkit.inference.transformer import TransformerInference
from nmtkit.model.architectures import make_model
from nmtkit.model.layers import DecoderLayer
from nmtkit.model.precision import resolve_device, resolve_precision
from nmtkit.model.presets import PRESETS
from nmtkit.model.transformer import Memory, Transformer
from nmtkit.text import read_lines
from nmtkit.vocab import EOS, PAD, SPECIALS

BLOCK = 16  # positions by which the cache grows
WARM_UP = 3  # runs of a step before it is captured


class StaticState:
    """Decoder state of B sentences with `beam` slots each, N = B·beam, at fixed memory addresses.

    Caches are time first, (capacity, N, ·), and double-buffered: a step copies the surviving rows from the cache of
    the previous step. The slots of the R rows of the search are computed outside of the captured graph.
    """

    def __init__(self, decoder: "StaticDecoder", memory: Memory) -> None:
        B, device = memory.values.size(0), memory.values.device
        self.decoder, self.source = decoder, decoder.plain.start(memory)
        self.tokens = torch.zeros(B * decoder.beam, dtype=torch.long, device=device)  # (N,), as are
        self.origins = torch.zeros_like(self.tokens)  # the slots whose prefixes they extend
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.caches = [self._caches(BLOCK), self._caches(BLOCK)]
        self.captured: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor]] = {}  # by capacity, parity
        self.begin()

    def begin(self, memory: Memory | None = None) -> "StaticState":
        """Reset the state for other sentences of the same shape, with one row each."""
        if memory is not None:
            fresh = self.decoder.plain.start(memory)
            self.source.memory_bias.copy_(fresh.memory_bias)
            for mine, other in zip(self.source.layers, fresh.layers, strict=True):
                mine.memory_keys.copy_(other.memory_keys)
                mine.memory_values.copy_(other.memory_values)
        self.length = 0
        self.sentences = torch.arange(self.source.memory_bias.size(0), device=self.tokens.device)  # (R,)
        self.slots = self.sentences * self.decoder.beam  # (R,)
        return self

    def _caches(self, capacity: int) -> list[list[Tensor]]:
        """Empty caches for the keys and values of each layer."""
        like, N = self.source.memory_bias, self.tokens.numel()
        layers = cast(list[DecoderLayer], self.decoder.model.decoder)
        return [[like.new_zeros(capacity, N, width) for width in layer.self_attention.widths[1:]] for layer in layers]

    def _grow(self) -> None:
        larger = [self._caches(2 * self.length) for _ in self.caches]
        for new, old in zip(larger, self.caches, strict=True):
            for cache, before in zip(chain.from_iterable(new), chain.from_iterable(old), strict=True):
                cache[: self.length] = before
        self.caches = larger
        self.captured.clear()

    def reorder(self, origins: Tensor) -> None:
        """As `InferenceState.reorder`."""
        came_from = self.slots[origins]
        self.sentences = self.sentences[origins]
        _, counts = torch.unique_consecutive(self.sentences, return_counts=True)
        first = (counts.cumsum(0) - counts).repeat_interleave(counts)
        within = torch.arange(origins.numel(), device=origins.device) - first
        self.slots = self.sentences * self.decoder.beam + within
        self.origins.index_copy_(0, self.slots, came_from)

    def step(self, tokens: Tensor) -> Tensor:
        """Log-probabilities (R, W) of the next tokens."""
        if self.length == self.caches[0][0][0].size(0):
            self._grow()
        self.tokens.index_copy_(0, self.slots, tokens)
        self.position.fill_(self.length)
        log_probs = self._log_probs(capacity=(self.length // BLOCK + 1) * BLOCK, odd=self.length % 2)
        self.length += 1
        return log_probs.index_select(0, self.slots)

    def _log_probs(self, capacity: int, odd: int) -> Tensor:
        if not self.decoder.graphs:
            return self.decoder.compute(self, capacity, odd)
        if (capacity, odd) not in self.captured:
            side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side_stream):
                for _ in range(WARM_UP):
                    self.decoder.compute(self, capacity, odd)
            torch.cuda.current_stream().wait_stream(side_stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.decoder.pool):
                self.captured[capacity, odd] = graph, self.decoder.compute(self, capacity, odd)
        graph, log_probs = self.captured[capacity, odd]
        graph.replay()
        return log_probs


class StaticDecoder(TransformerInference):
    """An inference model whose steps are all alike."""

    def __init__(self, model: Transformer, beam: int, graphs: bool) -> None:
        self.model, self.plain, self.beam, self.graphs = model, TorchTransformer(model), beam, graphs
        super().__init__(model.config, self.plain.vocabulary_size, model.output_matrix.element_size())
        self.device, self.precision = self.plain.device, self.plain.precision
        self.pool = torch.cuda.graph_pool_handle() if graphs else None  # all graphs share it: one runs at a time
        self._states: dict[torch.Size, StaticState] = {}  # by the shape of the source

    def encode(self, src: Tensor, lengths: Tensor) -> Memory:
        """As `InferenceModel.encode`; widths are whole blocks, so that shapes come again."""
        return self.model.encode(F.pad(src, (0, -src.size(1) % BLOCK), value=PAD), lengths)

    def start(self, memory: Memory) -> StaticState:
        """As `InferenceModel.start`."""
        shape = memory.mask.shape
        if shape in self._states:
            return self._states[shape].begin(memory)
        self._states[shape] = StaticState(self, memory)
        return self._states[shape]

    def step(self, tokens: Tensor, state: StaticState) -> Tensor:
        """As `InferenceModel.step`."""
        return state.step(tokens)

    def compute(self, state: StaticState, capacity: int, odd: int) -> Tensor:
        """Log-probabilities (N, W) of one step of all slots, in the state's memory, without host synchronization."""
        model = self.model
        learned = model.config.positions == "learned"
        encodings = model.target_positions(0, min(capacity, model.config.max_positions) if learned else capacity)
        positions = encodings.index_select(0, state.position)
        x = model.target_embedding(state.tokens) * model.config.d_model**0.5 + positions
        hidden = torch.arange(capacity, device=x.device) > state.position
        bias = x.new_zeros(1, capacity).masked_fill_(hidden, -torch.inf)
        for number, layer in enumerate(cast(list[DecoderLayer], model.decoder)):
            before, after = state.caches[1 - odd][number], state.caches[odd][number]
            attend_to_target = partial(self._attend_to_target, layer, state, before, after, capacity, bias)
            x = layer.around_self_attention(x, attend_to_target)
            x = layer.around_cross_attention(x, partial(self._attend_to_source, layer, state, number))
            x = layer.around_feed_forward(x, layer.feed_forward)
        return log_softmax(model.project(model.decoder_norm(x)))

    def _attend_to_target(
        self,
        layer: DecoderLayer,
        state: StaticState,
        before: list[Tensor],
        after: list[Tensor],
        capacity: int,
        bias: Tensor,
        x: Tensor,
    ) -> Tensor:
        attention, heads = layer.self_attention, layer.self_attention.heads
        q, *new = attention.qkv(x).split(attention.widths, dim=-1)
        for cache, old, now in zip(after, before, new, strict=True):
            torch.index_select(old[:capacity], 1, state.origins, out=cache[:capacity])
            cache.index_copy_(0, state.position, now.unsqueeze(0))
        k, v = (
            cache[:capacity].view(capacity, -1, heads, width // heads).permute(1, 2, 0, 3)
            for cache, width in zip(after, attention.widths[1:], strict=True)
        )
        attended = F.scaled_dot_product_attention(q.view(q.size(0), heads, 1, -1), k, v, attn_mask=bias)
        return cast(Tensor, attention.out(attended.flatten(1)))

    def _attend_to_source(self, layer: DecoderLayer, state: StaticState, number: int, x: Tensor) -> Tensor:
        attention, source = layer.cross_attention, state.source.layers[number]
        q = attention.q(x).view(-1, self.beam, attention.widths[0])
        attended = attend_together(q, source.memory_keys, source.memory_values, state.source.memory_bias)
        return cast(Tensor, attention.out(attended.flatten(0, 1)))


def random_batches(batch: int, length: int, vocabulary: int, count: int) -> list[list[list[int]]]:
    """Sentences of `length` random pieces."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(len(SPECIALS), vocabulary, (count, batch, length), generator=generator)
    return [[[*row, EOS] for row in sentences] for sentences in ids.tolist()]


def read_batches(checkpoint: Any, text: Path, batch: int) -> list[list[list[int]]]:
    """The sentences of a text in batches of `batch`, longest first."""
    encoded = checkpoint.source.encode(list(read_lines(text)))
    ids = sorted(([*row, EOS] for row in encoded if row), key=len, reverse=True)
    return [ids[start : start + batch] for start in range(0, len(ids), batch)]


@click.command()
@click.option("--checkpoint", type=click.Path(exists=True, path_type=Path))
@click.option("--text", type=click.Path(exists=True, path_type=Path), help="Needs --checkpoint.")
@click.option("--arch", type=click.Choice(list(PRESETS)), default="transformer_base", show_default=True)
@click.option("--vocabulary", default=37_000, show_default=True)
@click.option("--length", default=27, show_default=True, help="Pieces of random sentences and of their outputs.")
@click.option("--batch", default=1024, show_default=True, help="Sentences in a batch.")
@click.option("--beam", default=4, show_default=True)
@click.option("--runs", default=5, show_default=True, help="Timed runs. The median is printed.")
@click.option("--precision", default="bf16", show_default=True)
@click.option("--device", default="auto", show_default=True)
def main(
    checkpoint: Path | None,
    text: Path | None,
    arch: str,
    vocabulary: int,
    length: int,
    batch: int,
    beam: int,
    runs: int,
    precision: str,
    device: str,
) -> None:
    """Time the search with the plain step, the static step and its CUDA graph alternately."""
    if (checkpoint is None) != (text is None):
        raise click.UsageError("--checkpoint and --text go together")
    on = resolve_device(device)
    if checkpoint is not None and text is not None:
        loaded = load_checkpoint(checkpoint)
        model, batches, config = loaded.build_model(), read_batches(loaded, text, batch), SearchConfig(beam=beam)
    else:
        torch.manual_seed(1)
        model = make_model(PRESETS[arch].model_config(), vocabulary, vocabulary)
        batches = random_batches(batch, length, vocabulary, count=2)
        config = SearchConfig(beam=beam, max_len_a=0.0, max_len_b=length, min_len=length)
    model = cast(Transformer, model.to(on, resolve_precision(precision, on)).eval())
    padded = [pad(rows) for rows in batches]
    sources = [(src.to(on), lengths.to(on)) for src, lengths in padded]
    ways: dict[str, InferenceModel] = {
        "plain": TorchTransformer(model),
        "static": StaticDecoder(model, beam, graphs=False),
    }
    if on.type == "cuda":
        ways["graph"] = StaticDecoder(model, beam, graphs=True)
    outputs: dict[str, list[list[int]]] = {}

    def run(name: str) -> float:
        start = time.perf_counter()
        found = [nbest for src, lengths in sources for nbest in search(ways[name], src, lengths, config)]
        seconds = time.perf_counter() - start  # the search ends by copying its outputs to the host
        outputs[name] = [nbest[0].ids for nbest in found]
        return seconds

    with torch.cuda.device(on) if on.type == "cuda" else nullcontext():
        for name in [*ways, *ways]:
            run(name)  # warm-up: memory, kernels, position tables, graphs of all capacities
        for name in ways:
            same = sum(a == b for a, b in zip(outputs["plain"], outputs[name], strict=True))
            print(f"{name}: {same} of {len(outputs[name])} outputs are those of the plain step")
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(runs):
            for name, seconds in times.items():
                seconds.append(run(name))
        for name, seconds in times.items():
            tokens, took = sum(len(ids) + 1 for ids in outputs[name]), statistics.median(seconds)
            rates = f"{tokens / took:,.0f} output tokens/s, {len(outputs[name]) / took:,.1f} sentences/s"
            idle = idle_share(partial(run, name))
            print(f"{name}: {rates}, " + ("no GPU" if idle is None else f"the GPU idle for {idle:.1%} of the time"))


if __name__ == "__main__":
    main()
