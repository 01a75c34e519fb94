"""Subword sampling: drawn as the papers say, the same text, the same draw wherever and whenever it is made."""

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmtkit.data.batching import START, DataPosition
from nmtkit.data.corpus import Dataset
from nmtkit.data.mixture import Mixture
from nmtkit.data.sampling import PairSampling
from nmtkit.data.subwords import BPEDropout, Resegmenter, Scores, UnigramSampling
from nmtkit.errors import UserError
from nmtkit.text.spm_model import ModelType, read_model
from nmtkit.text.spm_training import train_sentencepiece
from nmtkit.text.tokenizer import SentencePieceTokenizer, SentencePieceVocabTokenizer, SpaceTokenizer
from nmtkit.text.vocabulary import PAD, UNK, Vocabulary
from nmtkit.training.loader import Loader
from nmtkit.training.ranks import Ranks

WORDS = "der hund die katze the dog a cat läuft runs über on straße street unterstraße overrun catdog ab1 x"
SHARPEST = 1e4  # an α at which only the best segmentation is left


def lines(count: int, seed: int = 1) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS.split(), k=generator.randint(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module", params=["bpe", "bpe with bytes", "unigram", "unigram without some pieces"])
def tokenizer(request: pytest.FixtureRequest) -> SentencePieceTokenizer | SentencePieceVocabTokenizer:
    kind, *more = request.param.split()
    with_bytes = more[:1] == ["with"]
    model = train_sentencepiece(
        lines(300),
        vocab_size=330 if with_bytes else 45,
        model_type=kind,
        character_coverage=0.98,
        byte_fallback=with_bytes,
        threads=1,
    )
    tokenizer = SentencePieceTokenizer(model)
    if more[:1] == ["without"]:
        return SentencePieceVocabTokenizer(Vocabulary(tokenizer.vocab.pieces[:-5]), model)
    return tokenizer


def best_rate(tokenizer: SentencePieceTokenizer) -> float:
    return 0.0 if read_model(tokenizer.model)[0] == ModelType.BPE else SHARPEST


def test_deterministic_resegmentation_returns_the_stored_pieces(tokenizer: SentencePieceTokenizer) -> None:
    resegment = Resegmenter(tokenizer, best_rate(tokenizer))
    for ids in tokenizer.encode([*lines(200, seed=7), "", "ß ß€ß unbekannt Ω über€", "x" * 80]):
        assert resegment(ids, random.Random(1).random) == ids


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_every_sampled_segmentation_decodes_to_the_same_text(tokenizer: SentencePieceTokenizer, rate: float) -> None:
    resegment, draw = Resegmenter(tokenizer, rate), random.Random(rate).random
    stored = tokenizer.encode([*lines(200, seed=8), "", "ß ß€ß unbekannt Ω über€", "x" * 80])
    drawn = [resegment(ids, draw) for ids in stored]
    assert [tokenizer.decode(ids) for ids in drawn] == [tokenizer.decode(ids) for ids in stored]
    assert [ids.count(UNK) for ids in drawn] == [ids.count(UNK) for ids in stored]
    assert drawn != stored


# --- the distributions, by enumeration of all that can happen

MERGES = ["ab", "bc", "abc", "cd", "abcd", "aa"]
SCORES: Scores = {piece: (float(-place), place + 10) for place, piece in enumerate([*MERGES, *"abcd"])}


def bpe_dropout(pieces: tuple[str, ...], rate: float) -> dict[tuple[str, ...], float]:
    """Algorithm 1 of Provilkov et al. 2020 to the letter: the probability of each result."""
    merges = [place for place in range(len(pieces) - 1) if pieces[place] + pieces[place + 1] in MERGES]
    result: dict[tuple[str, ...], float] = defaultdict(float)
    for kept in itertools.product([False, True], repeat=len(merges)):
        probability = math.prod((1 - rate) if keep else rate for keep in kept)
        left = [place for place, keep in zip(merges, kept, strict=True) if keep]
        if not left:
            result[pieces] += probability
            continue
        place = min(left, key=lambda place: (MERGES.index(pieces[place] + pieces[place + 1]), place))
        merged = (*pieces[:place], pieces[place] + pieces[place + 1], *pieces[place + 2 :])
        for end, share in bpe_dropout(merged, rate).items():
            result[end] += probability * share
    return result


def all_segmentations(text: str) -> Iterator[tuple[str, ...]]:
    if not text:
        yield ()
    for end in range(1, len(text) + 1):
        if text[:end] in SCORES:
            yield from ((text[:end], *rest) for rest in all_segmentations(text[end:]))


def unigram(text: str, alpha: float) -> dict[tuple[str, ...], float]:
    weights = {
        pieces: math.exp(alpha * sum(SCORES[piece][0] for piece in pieces)) for pieces in all_segmentations(text)
    }
    return {pieces: weight / sum(weights.values()) for pieces, weight in weights.items()}


def assert_drawn_as(
    segment: Callable[[str, Callable[[], float]], Sequence[int] | None],
    text: str,
    expected: dict[tuple[str, ...], float],
) -> None:
    """Of 5,000 draws, chi-squared is below what it passes once in 10,000 times, by Wilson and Hilferty."""
    draw = random.Random(text).random
    counts = Counter(tuple(segment(text, draw) or ()) for _ in range(5000))
    by_ids = {tuple(SCORES[piece][1] for piece in pieces): share * 5000 for pieces, share in expected.items()}
    assert sum(by_ids.values()) == pytest.approx(5000)
    assert counts.keys() <= by_ids.keys()
    common = {ids: share for ids, share in by_ids.items() if share >= 5}
    freedom = len(common)
    chi_squared = sum((counts[ids] - share) ** 2 / share for ids, share in common.items())
    assert chi_squared < freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("rate", [0.1, 0.9])
@pytest.mark.parametrize("text", ["abcd", "abab"])
def test_bpe_dropout_follows_the_distribution_of_the_paper(text: str, rate: float) -> None:
    assert_drawn_as(BPEDropout(SCORES, rate), text, bpe_dropout(tuple(text), rate))


@pytest.mark.parametrize("alpha", [0.1, 1.0])
@pytest.mark.parametrize("text", ["abcd", "abab"])
def test_unigram_sampling_draws_segmentations_with_probability_to_the_power_of_alpha(text: str, alpha: float) -> None:
    assert_drawn_as(UnigramSampling(SCORES, alpha), text, unigram(text, alpha))


def test_cached_words_are_sampled_like_uncached_words() -> None:
    word = "abcdaabc" * 5
    for kind in (BPEDropout, UnigramSampling):
        fresh, used = kind(SCORES, 0.3), kind(SCORES, 0.3)
        for warm_up in range(50):
            used(word[:16], random.Random(warm_up).random)
        for text in (word, word[:16]):
            assert fresh(text, random.Random(3).random) == used(text, random.Random(3).random)


def test_a_text_that_the_pieces_cannot_spell_has_no_sample() -> None:
    scores = {piece: score for piece, score in SCORES.items() if piece != "b"}
    drawn = {tuple(BPEDropout(scores, 0.5)("abc", random.Random(n).random) or ()) for n in range(50)}
    assert {(), (SCORES["abc"][1],)} <= drawn
    assert UnigramSampling(scores, 0.5)("abdb", random.Random(1).random) is None


# --- the pairs of a dataset


@pytest.fixture(scope="module")
def dataset(datasets: dict[str, Path]) -> Dataset:
    return Dataset.open(datasets["joined"])


def sampling(dataset: Dataset, *, rate: float = 0.2, longest: int = 1000, seed: int = 1) -> PairSampling:
    return PairSampling(dataset, dataset.split("train"), rate, longest, seed)


def drawn(sampling: PairSampling, epoch: int, pairs: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    sides = [
        [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]
        for tokens, lengths in sampling.gather(epoch, np.array(pairs))
    ]
    return list(zip(*sides, strict=True))


def test_a_sampled_segmentation_depends_only_on_seed_epoch_and_sentence(dataset: Dataset) -> None:
    pairs = range(200)
    whole = drawn(sampling(dataset), 3, pairs)
    shuffled = random.Random(1).sample(pairs, 200)
    other = sampling(dataset)
    assert [pair for pairs in (shuffled[:7], shuffled[7:]) for pair in drawn(other, 3, pairs)] == [
        whole[i] for i in shuffled
    ]
    for changed in (drawn(sampling(dataset), 4, pairs), drawn(sampling(dataset, seed=2), 3, pairs)):
        assert sum(ours != theirs for ours, theirs in zip(whole, changed, strict=True)) > 150


def test_a_sentence_that_would_become_too_long_keeps_its_stored_segmentation(dataset: Dataset) -> None:
    split = dataset.split("train")
    for number, pair in enumerate(drawn(sampling(dataset, rate=0.9, longest=20), 1, range(len(split)))):
        for ids, stored in zip(pair, (split.source[number], split.target[number]), strict=True):
            assert len(ids) <= 20 or ids == stored.tolist()


def test_segmented_text_is_refused(datasets: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="needs a SentencePiece model, but the dataset's tokenizer is space"):
        sampling(Dataset.open(datasets["separate"]))
    with pytest.raises(UserError, match="tokenizer is space"):
        Resegmenter(SpaceTokenizer(Vocabulary(["<pad>", "<unk>", "<s>", "</s>", "a"])), 0.1)


@pytest.mark.parametrize("model_type", ["char", "word"])
def test_a_model_with_only_one_segmentation_per_text_is_refused(model_type: str) -> None:
    model = train_sentencepiece(
        lines(100), vocab_size=20, model_type=model_type, character_coverage=1.0, byte_fallback=False, threads=1
    )
    with pytest.raises(UserError, match=f"of type {model_type}, which has only one segmentation"):
        Resegmenter(SentencePieceTokenizer(model), 0.1)


# --- in training


@pytest.mark.parametrize(("ranks", "workers", "place"), [(1, 2, START), (3, 0, START), (2, 1, DataPosition(1, 0, 4))])
def test_batches_do_not_depend_on_ranks_workers_or_resuming(
    ranks: int, workers: int, place: DataPosition, dataset: Dataset
) -> None:
    split = dataset.split("train")
    mixture = Mixture([(split.source.lengths, split.target.lengths)], [1.0], batch_tokens=500, max_tokens=100, seed=1)
    drawn = [sampling(dataset)]
    straight = Loader([split], mixture, 0, 1, 0, drawn, max_tokens=100).updates([START])
    expected = [dict(work.share()) for work in itertools.islice(straight, 9)][place.updates :]
    loaders = [
        Loader([split], mixture, rank, ranks, workers, drawn, max_tokens=100).updates([place]) for rank in range(ranks)
    ]
    for batches in expected:
        shares = [pair for loader in loaders for pair in next(loader).share()]
        assert len(shares) == len(batches)
        for number, parts in shares:
            assert len(parts) == len(batches[number])
            for part, other in zip(parts, batches[number], strict=True):
                assert torch.equal(part.src, other.src)
                assert torch.equal(part.tgt_in, other.tgt_in)


def sentences_of(*batches: Any) -> list[tuple[list[int], list[int]]]:
    return [
        ([id for id in src if id != PAD], [id for id in tgt if id != PAD])
        for batch in batches
        for src, tgt in zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    ]


def test_a_micro_batch_that_sampling_grows_beyond_max_tokens_is_split(dataset: Dataset) -> None:
    split = dataset.split("train")
    mixture = Mixture([(split.source.lengths, split.target.lengths)], [1.0], batch_tokens=500, max_tokens=100, seed=1)

    def parts_of(*sampling: PairSampling) -> list[int]:
        counts = []
        limited = Loader([split], mixture, 0, 1, 0, sampling, max_tokens=100).updates([START])
        whole = Loader([split], mixture, 0, 1, 0, sampling).updates([START])
        for work, uncut in itertools.islice(zip(limited, whole, strict=True), 5):
            for (_, parts), (_, (batch,)) in zip(work.share(), uncut.share(), strict=True):
                counts.append(len(parts))
                assert sorted(sentences_of(*parts)) == sorted(sentences_of(batch))
                assert all(max(part.src.numel(), part.tgt_out.numel()) <= 100 for part in parts)
        return counts

    assert set(parts_of()) == {1}
    assert max(parts_of(sampling(dataset, rate=0.5, longest=100))) > 1


def test_token_counts_use_the_sampled_segmentation(dataset: Dataset) -> None:
    split = dataset.split("train")
    mixture = Mixture([(split.source.lengths, split.target.lengths)], [1.0], batch_tokens=500, max_tokens=100, seed=1)
    work = next(Loader([split], mixture, 0, 1, 0, [sampling(dataset, rate=0.5)]).updates([START]))
    share = work.share()
    counted = work.with_exact_counts(share, Ranks(torch.device("cpu")))
    target_tokens = sum(counted.target_tokens)
    batches = [batch for _, parts in share for batch in parts]
    assert target_tokens == sum(int((batch.tgt_out != PAD).sum()) for batch in batches) > sum(work.target_tokens)
    assert counted.tokens == target_tokens + sum(int((batch.src != PAD).sum()) for batch in batches)
    assert counted.padded_tokens == sum(batch.src.numel() + batch.tgt_out.numel() for batch in batches)
