"""Compare imports of random M2M-100, NLLB-200 and mBART-50 models with transformers; not part of the test suite.

python tests/conversion/compare_multilingual.py --text train.en --text train.de --lines test.en --models 20
python tests/conversion/compare_multilingual.py --text train.en --text train.de --lines test.en --pin FOLDER

The second form writes the small models of the suite, with the tokens that transformers outputs.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from multilingual_models import CODES, NAMES, MultilingualModel

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.huggingface_export import to_huggingface
from nmtkit.conversion.importers import find_importer
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.forced import score
from nmtkit.text.vocabulary import EOS

LIMIT = 30  # tokens of an output
HOSTILE = ["Two  spaces , and 日本 .", "ÄÖÜ ½ ﬁ e\u0301", "A dog (__de__) runs home,deu_Latn."]


def imported(folder: Path) -> Checkpoint:
    """The import of a folder."""
    return find_importer(folder).read(folder, ImportConfig())


def main() -> None:
    """Compare models, or write those of the suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, action="append", required=True)
    parser.add_argument("--lines", type=Path, required=True)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--per-model", type=int, default=50)
    parser.add_argument("--pin", type=Path)
    given = parser.parse_args()
    text = [line for path in given.text for line in path.read_text(encoding="utf-8").splitlines()[:3000]]
    lines = given.lines.read_text(encoding="utf-8").splitlines()
    for kind in NAMES:
        if given.pin:
            pin(given.pin / kind, kind, text, lines[:60])
            continue
        rows = []
        for seed in range(given.models):
            with tempfile.TemporaryDirectory() as folder:
                start = seed * given.per_model % len(lines)
                chosen = [*HOSTILE, *lines[start : start + given.per_model - len(HOSTILE)]]
                rows.append(compare(MultilingualModel(Path(folder) / kind, kind, seed, text), chosen))
                print(kind, seed, {name: float(f"{value:.3g}") for name, value in rows[-1].items()}, flush=True)
        worst = {name: max(row[name] for row in rows) for name in ("logits", "scores")}
        totals = {name: sum(row[name] for row in rows) for name in ("lines", "equal", "segmented")}
        print(f"{kind}: {len(rows)} models, {totals}, largest difference {worst}", flush=True)


def compare(source: MultilingualModel, lines: list[str]) -> dict[str, float]:
    """Differences between a model and its import, and between the folder and its export."""
    checkpoint = imported(source.folder)
    check_round_trip(checkpoint, source.folder)
    codes, tokenizer = CODES[source.kind], source.tokenizer()
    tokenizer.src_lang = codes[0].strip("_")
    vocab = checkpoint.source.vocab
    theirs = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(lines)["input_ids"]]
    ours = [[codes[0], *vocab.to_pieces(ids), "</s>"] for ids in checkpoint.source.encode(lines)]
    save_checkpoint(source.folder / "model.pt", checkpoint)
    translator = Translator.from_checkpoint(
        source.folder / "model.pt", source_lang="en", target_lang="de", device="cpu", precision="fp32"
    )
    expected, _ = source.generate(lines, *codes, num_beams=1, do_sample=False, max_new_tokens=LIMIT + 2)
    outputs = translator.translate(lines, beam=1, max_len_a=0, max_len_b=LIMIT)
    return {
        "lines": len(lines),
        "segmented": sum(a == b for a, b in zip(theirs, ours, strict=True)),
        "equal": sum(a == b for a, b in zip(expected, outputs, strict=True)),
        "distinct": len(set(outputs)),
        "logits": logits_difference(source, checkpoint),
        **scores_difference(source, translator, lines[:20]),
    }


def own_ids(source: MultilingualModel, checkpoint: Checkpoint) -> np.ndarray:
    """nmtkit's id for each id of transformers; that of <s> is the first after the special ones."""
    return np.array([4, 0, EOS, 1, *range(5, len(checkpoint.source.vocab))])


@torch.no_grad()
def logits_difference(source: MultilingualModel, checkpoint: Checkpoint) -> float:
    """The largest difference of log-probabilities without <pad>, in a batch with padding."""
    order = own_ids(source, checkpoint)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([7, 4, 1])
    ids = torch.randint(4, len(order), (3, 7), generator=generator)
    mask = torch.arange(7) < lengths.unsqueeze(1)
    ids[torch.arange(3), lengths - 1] = 2
    ids[~mask] = 1
    tgt = torch.randint(4, len(order), (3, 6), generator=generator)
    tgt[:, 0] = 2
    logits = source.model(ids, attention_mask=mask.long(), decoder_input_ids=tgt, use_cache=False).logits
    logits[..., 1] = -torch.inf
    model = checkpoint.build_model()
    inputs = torch.from_numpy(order)[tgt]
    inputs[:, 0] = 2  # BOS
    found = model(torch.from_numpy(order)[ids], lengths, inputs).log_softmax(-1)
    kept = [number for number in range(len(order)) if number != 1]
    difference = found[..., order[kept]] - logits.log_softmax(-1)[..., kept]
    return float(difference.abs().max())


def scores_difference(source: MultilingualModel, translator: Translator, lines: list[str]) -> dict[str, float]:
    """The largest difference of beam scores, over the outputs that end before the limit, and their number."""
    codes, tokenizer = CODES[source.kind], source.tokenizer()
    _, found = source.generate(lines, *codes, num_beams=4, length_penalty=1.0, max_new_tokens=LIMIT + 20)
    order = own_ids(source, imported(source.folder))
    config = SearchConfig(length_penalty=1.0, length_penalty_form="power")
    vocab, differences = translator.source.vocab, []
    (start,), (tag,) = vocab.to_ids([codes[1]]), vocab.to_ids([codes[0]])
    for line, ids, theirs in zip(lines, found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        if 2 in ids[2 : LIMIT + 20]:
            target = order[ids[2 : ids.index(2, 2)]].tolist()
            given = [tag, *translator.source.encode([line])[0], EOS]
            (own,) = score(translator.model, [given], [target], config, [(start,)])
            differences.append(abs(own.score - theirs))
    del tokenizer
    return {"scores": max(differences, default=0.0), "scored": len(differences)}


def check_round_trip(checkpoint: Checkpoint, folder: Path) -> None:
    """Import, export and import: equal to the bit, and so are the tensors that are used."""
    from safetensors.torch import load_file

    exported = folder / "exported"
    to_huggingface(checkpoint, exported)
    again = imported(exported)
    assert again.model_config == checkpoint.model_config
    assert again.languages == checkpoint.languages
    assert (again.source.vocab, again.source.model) == (checkpoint.source.vocab, checkpoint.source.model)
    assert again.weights.keys() == checkpoint.weights.keys()
    assert all(np.array_equal(again.weights[name], weight) for name, weight in checkpoint.weights.items())
    before, after = (load_file(path / "model.safetensors") for path in (folder, exported))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        if "embed_positions" in name:
            assert torch.equal(tensor[2:], after[name][2:])
        elif name == "final_logits_bias":
            assert torch.equal(tensor[:, 2:], after[name][:, 2:])
        elif name != "model.shared.weight" or "lm_head.weight" not in before:
            assert torch.equal(tensor, after[name]), name


def pin(folder: Path, kind: str, text: list[str], lines: list[str]) -> None:
    """Write a small model and the tokens that transformers reads and outputs."""
    sizes: dict[str, Any] = {"d_model": 16, "tie_word_embeddings": True, "encoder_layers": 2, "decoder_layers": 2}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_ffn_dim": 24, f"{stack}_attention_heads": 2}
    lines = [*HOSTILE[1:], *lines]  # spaces are collapsed only with a normalization
    for seed in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        source = MultilingualModel(folder, kind, seed, text, pieces=200, normalization_rule_name="identity", **sizes)
        _, found = source.generate(lines, *CODES[kind], num_beams=1, do_sample=False, max_new_tokens=LIMIT + 2)
        distinct = len({tuple(ids) for ids in found.sequences.tolist()})
        if distinct > len(lines) // 2:
            break
    print(kind, "seed", seed, "distinct", distinct)
    tokenizer = source.tokenizer()
    tokenizer.src_lang = CODES[kind][0].strip("_")
    with (folder / "pinned.jsonl").open("w", encoding="utf-8") as file:
        for line, ids in zip(lines, found.sequences.tolist(), strict=True):
            output = [*ids[2:], 2]
            output = tokenizer.convert_ids_to_tokens(output[: output.index(2) + 1])
            read = tokenizer.convert_ids_to_tokens(tokenizer(line)["input_ids"])
            file.write(json.dumps({"line": line, "source": read, "output": output}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
