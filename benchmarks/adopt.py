"""Check: an imported model vs. the toolkit that it comes from, on real text.

    pip install ctranslate2 'nmtkit[import]'
    python benchmarks/adopt.py data/multi30k/train data/multi30k/test_2016_flickr -s en -t de --family marian

Trains a small model with transformers in a few minutes, or uses the one that is already in --folder, imports it with
nmt-import, and translates the test text with both. fairseq's checkpoint has the weights of the FSMT model, which is its
reference; CTranslate2's folder is converted from the Marian model. It prints:

* how many greedy translations of nmt-generate are equal, by their pieces and by their text;
* the largest difference of the log-probabilities of all tokens (CTranslate2: of the tokens of its translations);
* the largest difference of the scores of its beam search from those that nmtkit gives the same translations;
* the contents that nmt-export and another nmt-import change, among weights, options, languages and tokenizers.

nmtkit gives `<pad>` and `<s>` no probability, so the scores of transformers are normalized without them.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import click
import torch
from fairseq_format import fairseq_piece
from small_models import Corpus, Recipe, fsmt_to_fairseq, padded, train_fsmt, train_marian, transformers
from torch import Tensor

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, load_checkpoint, to_header
from nmtkit.decoding.config import EngineConfig, SearchConfig
from nmtkit.decoding.forced import score
from nmtkit.text.reading import find_side, read_lines
from nmtkit.text.vocabulary import BOS, EOS, NEVER_OUTPUT, PAD, SPECIALS

BIN = Path(__file__).parent.parent / "bin"
BATCH = 40  # lines
MAX_LENGTH = 40  # tokens of an output without EOS
BEAM = 5
Lines = Sequence[str]


class Output(NamedTuple):
    """A translation: its pieces without EOS, its log-probability, and whether it ended within `MAX_LENGTH`."""

    pieces: list[str]
    text: str
    score: float
    ended: bool


class Original(Protocol):
    """A model in its own toolkit."""

    def search(self, lines: Lines, beam: int) -> list[Output]:
        """Translate lines; `beam` 1 is greedy search."""

    def log_prob_error(self, ours: Checkpoint, lines: Lines, outputs: Sequence[Output]) -> float:
        """The largest difference of log-probabilities, given translations of the lines."""


class TransformersModel:
    """A Marian or FSMT model in transformers."""

    def __init__(self, folder: Path, rename: Callable[[str], str] = str) -> None:
        """`rename` gives nmtkit's form of a piece."""
        self._model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._pieces = {number: rename(piece) for number, piece in self._tokenizer.decoder.items()}
        config = self._model.config
        self._start, self._eos = config.decoder_start_token_id, config.eos_token_id
        self._never = [number for number, piece in self._tokenizer.decoder.items() if piece in ("<s>", "<pad>")]

    def _sources(self, lines: Lines) -> dict[str, Tensor]:
        rows = [self._tokenizer(line)["input_ids"] for line in lines]
        source = padded(rows, self._model.config.pad_token_id)
        return {"input_ids": source, "attention_mask": (source != self._model.config.pad_token_id).long()}

    @torch.inference_mode()
    def search(self, lines: Lines, beam: int) -> list[Output]:
        found = self._model.generate(
            **self._sources(lines),
            num_beams=beam,
            max_length=MAX_LENGTH + 1,
            bad_words_ids=[[number] for number in self._never],
            forced_eos_token_id=None,
            length_penalty=0.0,
            renormalize_logits=True,
            output_scores=True,
            return_dict_in_generate=True,
        )
        scores = found.sequences_scores.tolist() if beam > 1 else [0.0] * len(lines)
        return [self._output(ids[1:], total) for ids, total in zip(found.sequences.tolist(), scores, strict=True)]

    def _output(self, ids: list[int], total: float) -> Output:
        ended = self._eos in ids
        ids = ids[: ids.index(self._eos)] if ended else ids
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        return Output([self._pieces[number] for number in ids], text, total, ended)

    @torch.inference_mode()
    def log_prob_error(self, ours: Checkpoint, lines: Lines, outputs: Sequence[Output]) -> float:
        """The largest difference over all pieces, given the translations of the lines."""
        vocab = ours.target.vocab
        rows = [vocab.to_ids(output.pieces) for output in outputs]
        own_inputs = padded([[BOS, *ids] for ids in rows], EOS)
        order = self._ids_of(vocab.pieces)
        logits = self._model(**self._sources(lines), decoder_input_ids=order[own_inputs], use_cache=False).logits
        logits[..., self._never] = -torch.inf
        sources = [[*ids, EOS] for ids in ours.source.encode(lines)]
        lengths = torch.tensor(list(map(len, sources)))
        own = ours.build_model()(padded(sources, PAD), lengths, own_inputs).log_softmax(-1)
        kept = [number for number in range(len(vocab)) if number not in NEVER_OUTPUT]
        difference = (logits.log_softmax(-1)[..., order[kept]] - own[..., kept]).abs()
        places = torch.arange(own_inputs.size(1)) <= torch.tensor([[len(ids)] for ids in rows])
        return float(difference[places].max())

    def _ids_of(self, pieces: Sequence[str]) -> Tensor:
        """The id here of each piece of nmtkit; of BOS it is the start token."""
        ids = {piece: number for number, piece in self._pieces.items()}
        ids |= {piece: number for number, piece in self._tokenizer.decoder.items() if piece in SPECIALS}
        ids |= {SPECIALS[PAD]: self._start, SPECIALS[BOS]: self._start, SPECIALS[EOS]: self._eos}
        return torch.tensor([ids[piece] for piece in pieces])


class CTranslate2Model:
    """A Marian model, converted to CTranslate2."""

    def __init__(self, folder: Path, marian: Path) -> None:
        import ctranslate2

        self._engine = ctranslate2.Translator(str(folder), compute_type="float32")
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(marian)

    def _sources(self, lines: Lines) -> list[list[str]]:
        return [self._tokenizer.convert_ids_to_tokens(self._tokenizer(line)["input_ids"]) for line in lines]

    def search(self, lines: Lines, beam: int) -> list[Output]:
        results = self._engine.translate_batch(
            self._sources(lines),
            beam_size=beam,
            length_penalty=0.0,
            min_decoding_length=0,  # its default, 1, excludes EOS from the softmax of the first token
            max_decoding_length=MAX_LENGTH,
            return_scores=True,
        )
        return [self._output(result.hypotheses[0], result.scores[0]) for result in results]

    def _output(self, pieces: list[str], total: float) -> Output:
        text = self._tokenizer.decode(self._tokenizer.convert_tokens_to_ids(pieces))
        return Output(pieces, text, total, len(pieces) < MAX_LENGTH)

    def log_prob_error(self, ours: Checkpoint, lines: Lines, outputs: Sequence[Output]) -> float:
        """The largest difference over the tokens of the translations: the engine shows no others."""
        theirs = self._engine.score_batch(self._sources(lines), [output.pieces for output in outputs])
        pairs = zip(theirs, own_scores(Translator.of([ours], EngineConfig(device="cpu")), lines, outputs), strict=True)
        return float(max(abs(a - b) for scored, own in pairs for a, b in zip(scored.log_probs, own, strict=True)))


def own_scores(translator: Translator, lines: Lines, outputs: Sequence[Output]) -> list[tuple[float, ...]]:
    """nmtkit's log-probability of each piece of the translations, and of EOS."""
    sources = [[*ids, EOS] for ids in translator.source.encode(lines)]
    targets = [translator.target.vocab.to_ids(output.pieces) for output in outputs]
    scored = score(translator.model, sources, targets, SearchConfig(length_penalty=0.0))
    return [tuple(hypothesis.token_log_probs) for hypothesis in scored]


def make_marian(folder: Path, corpus: Corpus, recipe: Recipe) -> tuple[Path, Original]:
    """Train a Marian model unless it exists; return its path for nmt-import, and the model in its toolkit."""
    trained(folder / "marian", lambda path: train_marian(path, corpus, recipe))
    return folder / "marian", TransformersModel(folder / "marian")


def make_fsmt(folder: Path, corpus: Corpus, recipe: Recipe) -> tuple[Path, Original]:
    trained(folder / "fsmt", lambda path: train_fsmt(path, corpus, recipe))
    return folder / "fsmt", TransformersModel(folder / "fsmt")


def make_fairseq(folder: Path, corpus: Corpus, recipe: Recipe) -> tuple[Path, Original]:
    fsmt, _ = make_fsmt(folder, corpus, recipe)
    return fsmt_to_fairseq(fsmt, folder / "fairseq"), TransformersModel(fsmt, fairseq_piece)


def make_ctranslate2(folder: Path, corpus: Corpus, recipe: Recipe) -> tuple[Path, Original]:
    from ctranslate2.converters import TransformersConverter

    marian, _ = make_marian(folder, corpus, recipe)
    files = ["source.spm", "target.spm"]
    TransformersConverter(str(marian), copy_files=files).convert(str(folder / "ctranslate2"), force=True)
    return folder / "ctranslate2", CTranslate2Model(folder / "ctranslate2", marian)


def trained(folder: Path, train: Callable[[Path], None]) -> None:
    """Train into a folder, unless it has a model."""
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        train(folder)


class Family(NamedTuple):
    """A format, how a model of it is made, and the formats of nmt-export for its round trip."""

    make: Callable[[Path, Corpus, Recipe], tuple[Path, Original]]
    exports: tuple[str, ...]


FAMILIES = {
    "marian": Family(make_marian, ("huggingface", "ctranslate2", "safetensors")),
    "fsmt": Family(make_fsmt, ("ctranslate2", "safetensors")),
    "fairseq": Family(make_fairseq, ("ctranslate2", "safetensors")),
    "ctranslate2": Family(make_ctranslate2, ("ctranslate2", "huggingface", "safetensors")),
}


def compare_greedy(original: Original, imported: Path, lines: Lines) -> tuple[int, int]:
    """Count the lines with equal pieces, and those with equal text, of greedy search. Print lines with other text."""
    text = imported.with_suffix(".txt")
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    limits = ("--beam", 1, "--max-len-a", 0, "--max-len-b", MAX_LENGTH, "--device", "cpu", "--precision", "fp32")
    generated = command("nmt-generate", "--checkpoint", imported, "--input", text, *limits, "--format", "jsonl")
    ours = [json.loads(line)["hypotheses"][0] for line in generated.splitlines()]
    theirs = [output for chunk in chunks(lines) for output in original.search(chunk, 1)]
    same = [own["tokens"][:-1] == output.pieces for own, output in zip(ours, theirs, strict=True)]
    same_text = [own["text"] == output.text for own, output in zip(ours, theirs, strict=True)]
    for line, own, output, equal in zip(lines, ours, theirs, same_text, strict=True):
        if not equal:
            print(f"source:   {line}\n  nmtkit: {own['text']}\n  theirs: {output.text}", flush=True)
    return sum(same), sum(same_text)


def compare_scores(original: Original, ours: Checkpoint, lines: Lines) -> tuple[float, float]:
    """The largest differences of log-probabilities, and of the scores of the other toolkit's beam search."""
    translator = Translator.of([ours], EngineConfig(device="cpu", precision="fp32"))
    log_prob_error = score_error = 0.0
    for chunk in chunks(lines):
        outputs = original.search(chunk, BEAM)
        log_prob_error = max(log_prob_error, original.log_prob_error(ours, chunk, outputs))
        for output, scores in zip(outputs, own_scores(translator, chunk, outputs), strict=True):
            total = sum(scores if output.ended else scores[:-1])
            score_error = max(score_error, abs(total - output.score))
    return log_prob_error, score_error


def changed_by(form: str, imported: Path, languages: Sequence[str]) -> list[str]:
    """The names of all contents of a checkpoint of which an export and another import change a bit."""
    exported, again = imported.with_suffix(f".{form}"), imported.with_suffix(".again.pt")
    command("nmt-export", imported, "--to", form, "--output", exported, "--force")
    if form == "safetensors":
        command("nmt-export", exported, "--to", "checkpoint", "--output", again, "--force")
    else:
        command("nmt-import", exported, "--output", again, "-s", languages[0], "-t", languages[1])
    first, second = contents(load_checkpoint(imported)), contents(load_checkpoint(again))
    return [name for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)]


def contents(checkpoint: Checkpoint) -> dict[str, object]:
    """Everything in a checkpoint by name: weights as bytes, options, languages, vocabularies and their models."""
    header = to_header(checkpoint)
    options = header.pop("model")
    sides = {"source": checkpoint.source, "target": checkpoint.target}
    tokenizers = {f"{side} vocabulary": tokenizer.vocab.pieces for side, tokenizer in sides.items()}
    models = {f"{side} model": tokenizer.model for side, tokenizer in sides.items()}
    weights = {name: (weight.shape, weight.numpy().tobytes()) for name, weight in checkpoint.weights.items()}
    return {**header, **options, **tokenizers, **models, **weights}


def chunks(lines: Lines) -> Iterator[Lines]:
    """Batches of lines."""
    return (lines[begin : begin + BATCH] for begin in range(0, len(lines), BATCH))


def command(name: str, *arguments: object) -> str:
    """Run a command of nmtkit; return its stdout."""
    line = [sys.executable, str(BIN / name), *map(str, arguments), "--quiet"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{name}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


@click.command()
@click.argument("train")
@click.argument("test")
@click.option("-s", "--source-lang", required=True)
@click.option("-t", "--target-lang", required=True)
@click.option("--family", "families", multiple=True, type=click.Choice(list(FAMILIES)), default=list(FAMILIES))
@click.option("--folder", type=click.Path(path_type=Path), default="build/adopt", help="For models, which are kept.")
@click.option("--pairs", default=8000, help="Pairs of the corpus to train with.")
@click.option("--updates", default=400)
@click.option("--batch-tokens", default=1200, help="Target tokens of an update.")
@click.option("--vocab-size", default=2000, help="Pieces of each SentencePiece model, or BPE merges.")
@click.option("--lines", default=1000, help="Lines of the test text for greedy search.")
@click.option("--beam-lines", default=200, help="Lines of them for beam search.")
def main(
    train: str,
    test: str,
    source_lang: str,
    target_lang: str,
    families: tuple[str, ...],
    folder: Path,
    pairs: int,
    updates: int,
    batch_tokens: int,
    vocab_size: int,
    lines: int,
    beam_lines: int,
) -> None:
    """Train on TRAIN.SOURCE and TRAIN.TARGET, compare translations of TEST.SOURCE."""
    languages = source_lang, target_lang
    source, target = (list(islice(read_lines(find_side(train, language)), pairs)) for language in languages)
    corpus, recipe = Corpus(source, target, languages), Recipe(updates, vocab_size, batch_tokens)
    text = list(islice(read_lines(find_side(test, source_lang)), lines))
    for name in families:
        family, imported = FAMILIES[name], folder / f"{name}.pt"
        path, original = family.make(folder, corpus, recipe)
        command("nmt-import", path, "--output", imported, "-s", source_lang, "-t", target_lang)
        pieces, texts = compare_greedy(original, imported, text)
        print(f"{name}: greedy translations: {pieces} of {len(text)} have equal pieces, {texts} equal text", flush=True)
        log_probs, scores = compare_scores(original, load_checkpoint(imported), text[:beam_lines])
        print(f"  largest difference of log-probabilities {log_probs:.1e}, of scores of beam search {scores:.1e}")
        for form in family.exports:
            changed = ", ".join(changed_by(form, imported, languages)) or "nothing"
            print(f"  exported to {form} and imported again: {changed} changed", flush=True)


if __name__ == "__main__":
    main()
