"""Compare imports of random models with OpenNMT-py 2.3, which is installed with nmtkit; not part of the test suite.

python tests/conversion/compare_opennmt.py --trained separate.pt --trained shared.pt --lines test.bpe.en --models 20

The trained checkpoints provide the vocabularies; those of the second are shared.
"""

import argparse
import random
import tempfile
from copy import copy
from pathlib import Path
from typing import Any

import onmt.opts
import torch
from onmt.model_builder import build_base_model
from onmt.translate.translator import build_translator
from onmt.utils.parse import ArgumentParser

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.importers import find_importer
from nmtkit.decoding.config import SearchConfig
from nmtkit.text.vocabulary import BOS, EOS, PAD, UNK

LIMIT = 30  # tokens of an output
EXCLUDED = (1, 2)  # <blank> and <s>, which nmtkit never outputs


def main() -> None:
    """Print the differences of each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", type=Path, action="append", required=True)
    parser.add_argument("--lines", type=Path, required=True)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--per-model", type=int, default=50)
    given = parser.parse_args()
    trained = [torch.load(path, map_location="cpu", weights_only=False) for path in given.trained]
    lines = given.lines.read_text(encoding="utf-8").splitlines()
    rows = []
    for seed in range(given.models):
        chosen = [lines[(seed * given.per_model + number) % len(lines)] for number in range(given.per_model)]
        with tempfile.TemporaryDirectory() as folder:
            rows.append(compare(Path(folder) / "model.pt", trained[seed % len(trained)], seed, chosen))
        print(seed, {name: float(f"{value:.3g}") for name, value in rows[-1].items()}, flush=True)
    totals = {name: sum(row[name] for row in rows) for name in ("lines", "greedy", "beam", "ended")}
    print(totals, {name: max(row[name] for row in rows) for name in ("logits", "scores")})


@torch.no_grad()
def compare(path: Path, trained: dict[str, Any], seed: int, lines: list[str]) -> dict[str, float]:
    """Write a random model, and return its differences from its import."""
    model = random_model(path, trained, seed)
    checkpoint = find_importer(path).read(path, ImportConfig("en", "de"))
    save_checkpoint(path.with_name("nmtkit.pt"), checkpoint)
    own = Translator.from_checkpoint(path.with_name("nmtkit.pt"), device="cpu", precision="fp32")
    found: dict[str, float] = {"lines": len(lines), "logits": logits_difference(model, checkpoint, trained)}
    _, greedy = translated(path, lines, 1)
    outputs = own.translate(lines, beam=1, max_len_a=0, max_len_b=LIMIT, allow_unknown=True)
    found |= {"distinct": len(set(outputs)), "greedy": sum(map(same, outputs, greedy))}
    scores, beam = translated(path, lines, 4)
    search = SearchConfig(beam=4, length_penalty=0.0, max_len_a=0, max_len_b=LIMIT, allow_unknown=True)
    details = [translation.candidates[0] for translation in own.stream(lines, search)]
    ended = [number for number, line in enumerate(beam) if len(line.split()) < LIMIT]
    equal = [number for number in ended if same(details[number].text, beam[number])]
    differences = [abs(details[number].score - scores[number]) for number in equal]
    return found | {"ended": len(ended), "beam": len(equal), "scores": max(differences, default=0.0)}


def same(ours: str, theirs: str) -> bool:
    """Whether two outputs are equal, apart from the marks of BPE, which nmtkit joins."""
    return ours == (f"{theirs} ").replace("@@ ", "").rstrip()


def random_model(path: Path, trained: dict[str, Any], seed: int) -> Any:
    """Write a checkpoint with random sizes, activation, sharing and weights, and return its model."""
    choose = random.Random(seed)
    opt = copy(trained["opt"])
    heads = choose.choice([1, 2, 4, 8])
    width = heads * choose.choice([8, 12, 16])
    opt.enc_layers, opt.dec_layers, opt.heads = choose.randint(1, 3), choose.randint(1, 3), heads
    for name in ("rnn_size", "enc_rnn_size", "dec_rnn_size", "word_vec_size", "src_word_vec_size", "tgt_word_vec_size"):
        setattr(opt, name, width)
    opt.transformer_ff = choose.choice([24, 64, 100])
    opt.pos_ffn_activation_fn = choose.choice(["relu", "gelu"])
    opt.share_embeddings = opt.share_vocab and choose.random() < 0.6
    opt.share_decoder_embeddings = choose.random() < 0.5
    model = build_base_model(opt, trained["vocab"], gpu=False).eval()
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.copy_(torch.randn_like(parameter) * 0.1 + ("norm" in name and name.endswith("weight")))
        else:
            scale = 3 if "context_attn" in name else 1  # else outputs hardly depend on the source
            parameter.copy_(torch.randn_like(parameter) * scale * width**-0.5)
    bias = model.generator[0].bias
    bias[list(EXCLUDED)] = -1e4
    bias[3] += 3
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("generator.")}
    generator = model.generator.state_dict()
    torch.save({"model": weights, "generator": generator, "vocab": trained["vocab"], "opt": opt, "optim": None}, path)
    return model


def logits_difference(model: Any, checkpoint: Checkpoint, trained: dict[str, Any]) -> float:
    """The largest difference of log-probabilities, in a batch with padding."""
    pieces = [trained["vocab"][side].fields[0][1].vocab.itos for side in ("src", "tgt")]
    generator, lengths = torch.Generator().manual_seed(1), torch.tensor([7, 4, 1])
    src = torch.randint(4, len(pieces[0]), (3, 7), generator=generator)
    src[torch.arange(7) >= lengths.unsqueeze(1)] = 1
    tgt = torch.randint(4, len(pieces[1]), (3, 6), generator=generator)
    tgt[:, 0] = 2
    theirs = model(src.t().unsqueeze(2), torch.cat([tgt, tgt[:, :1]], 1).t().unsqueeze(2), lengths)[0]
    theirs = model.generator(theirs).transpose(0, 1)
    sides = zip((checkpoint.source.vocab, checkpoint.target.vocab), pieces, strict=True)
    source, target = (torch.tensor(vocab.to_ids(own)) for vocab, own in sides)
    special = torch.tensor([UNK, PAD, BOS, EOS])
    source[:2], target[:4] = special[:2], special  # as text, they are unknown
    ended = torch.cat([source[src], torch.full((3, 1), PAD)], 1)
    ended[torch.arange(3), lengths] = EOS  # in nmtkit's batches, although these models do not read it
    ours = checkpoint.build_model().eval()(ended, lengths + 1, target[tgt]).log_softmax(-1)[..., target]
    kept = [number for number in range(len(target)) if number not in EXCLUDED]
    return float((ours - theirs)[..., kept].abs().max())


def translated(path: Path, lines: list[str], beam: int) -> tuple[list[float], list[str]]:
    """The scores and outputs of OpenNMT-py."""
    parser = ArgumentParser()
    onmt.opts.config_opts(parser)
    onmt.opts.translate_opts(parser)
    given = ["-model", str(path), "-src", "unused", "-output", "/dev/null"]
    opt = parser.parse_args([*given, "-beam_size", str(beam), "-max_length", str(LIMIT)])
    scores, outputs = build_translator(opt, report_score=False).translate(lines, batch_size=50)
    return [float(score[0]) for score in scores], [output[0] for output in outputs]


if __name__ == "__main__":
    main()
