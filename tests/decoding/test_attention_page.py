"""The page of attention: its weights are torch's own, it holds what it must, and a browser shows it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import Browser, programs
from commands import Run
from prefix_models import with_lengths
from torch.nn import functional as F

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding.attention_page import Attention, write_attention_page
from nmtkit.decoding.config import PAGE_LINES, SearchConfig
from nmtkit.decoding.forced import all_heads
from nmtkit.inference.backends import torch_backend
from nmtkit.model.layers import DecoderLayer, EncoderLayer
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import BOS, EOS

HOSTILE = "a dog </script><script>document.title = 'broken'</script> <!-- & \" \u2028 runs"
LINES = ["the dog runs on the street", "", HOSTILE, "die katze läuft"]
TRANSLATED = [line for line in LINES if line]
OPTIONS = ("--device", "cpu", "--precision", "fp32", "--beam", 2, "--max-len-b", 2)
SEARCH: dict[str, Any] = {"beam": 2, "max_len_b": 2}


@pytest.fixture(scope="module")
def translator(tiny_checkpoint: Path) -> Translator:
    return Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32")


@pytest.fixture(scope="module")
def attentions(translator: Translator) -> list[Attention]:
    return translator.attention(LINES, **SEARCH)


def data_in(page: Path) -> Any:
    text = page.read_text(encoding="utf-8")
    assert text.count("<script") == text.count("</script") == 2  # the data, and what shows it
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in text
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def torch_weights(attention: Any, query: torch.Tensor, key: torch.Tensor, causal: bool) -> torch.Tensor:
    """(H, T, S) what torch's own attention gives for inputs (T, D) and (S, D)."""
    parts = [attention.qkv] if hasattr(attention, "qkv") else [attention.q, attention.kv]
    mask = torch.ones(len(query), len(key), dtype=torch.bool).triu(1) if causal else None
    _, weights = F.multi_head_attention_forward(
        *(query, key, key, query.size(1), attention.heads),
        *(torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=attention.out.weight,
        out_proj_bias=attention.out.bias,
        training=False,
        attn_mask=mask,
        average_attn_weights=False,
    )
    assert weights is not None
    return weights


@torch.inference_mode()
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_weights_of_all_heads_match_torch(norm: str, make_checkpoint: Callable[..., Checkpoint]) -> None:
    model = make_checkpoint(encoder_layers=2, decoder_layers=3, heads=4, norm=norm).build_model()
    row, target = [7, 30, 8, 9, EOS], [5, 40, 6]
    expected: dict[str, list[torch.Tensor]] = {"encoder": [], "decoder": [], "cross": []}
    memory = model.encode(*with_lengths(torch.tensor([row]))).values[0]

    def watch(kind: str, attention: Any) -> None:
        def compare(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            query = inputs[0][0]
            key = memory if kind == "cross" else query
            expected[kind].append(torch_weights(attention, query, key, causal=kind == "decoder"))

        attention.register_forward_pre_hook(compare)

    assert isinstance(model, Transformer)
    for layer in [*model.encoder, *model.decoder]:
        assert isinstance(layer, (EncoderLayer, DecoderLayer))
        watch("encoder" if isinstance(layer, EncoderLayer) else "decoder", layer.self_attention)
        if isinstance(layer, DecoderLayer):
            watch("cross", layer.cross_attention)
    model.decode(torch.tensor([[BOS, *target]]), model.encode(*with_lengths(torch.tensor([row]))))
    theirs = {kind: torch.stack(layers).numpy() for kind, layers in expected.items()}
    shapes = [(2, 4, 5, 5), (3, 4, 4, 4), (3, 4, 4, 5)]
    for weights, shape, found in zip(
        theirs.values(), shapes, all_heads(torch_backend(model), row, target), strict=True
    ):
        assert found.shape == shape
        assert np.allclose(found, weights, atol=1e-6)
        assert np.allclose(found.sum(-1), 1.0, atol=1e-6)


def test_each_nonblank_line_has_its_pieces_and_weights(translator: Translator, attentions: list[Attention]) -> None:
    assert [attention.text for attention in attentions] == TRANSLATED
    assert [attention.translation for attention in attentions] == translator.translate(TRANSLATED, **SEARCH)
    aligned = translator.stream(TRANSLATED, SearchConfig(**SEARCH, alignment=True, alignment_layer=2))
    for attention, translation in zip(attentions, aligned, strict=True):
        assert attention.source == translation.source_tokens
        assert attention.target == translation.candidates[0].tokens
        assert translation.candidates[0].attention is not None
        assert np.allclose(attention.cross[1].mean(0), translation.candidates[0].attention, atol=1e-5)


def test_the_command_writes_the_page_and_the_translations(
    run_here: Run, tiny_checkpoint: Path, tmp_path: Path, attentions: list[Attention]
) -> None:
    page, text = tmp_path / "page.html", "".join(f"{line}\n" for line in LINES).encode()
    plain = run_here("nmt-generate", "--checkpoint", tiny_checkpoint, *OPTIONS, input=text)
    done = run_here("nmt-generate", "--checkpoint", tiny_checkpoint, *OPTIONS, "--attention-html", page, input=text)
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    shown = data_in(page)
    assert shown["languages"] == ["en", "de"]
    for sentence, attention in zip(shown["sentences"], attentions, strict=True):
        assert [sentence["text"], sentence["translation"]] == [attention.text, attention.translation]
        assert [tuple(sentence["source"]), tuple(sentence["target"])] == [attention.source, attention.target]
        for kind in ("encoder", "cross"):
            assert np.allclose(np.array(sentence[kind]) / 1000, getattr(attention, kind), atol=5.1e-4)
        for layer, own in zip(sentence["decoder"], attention.decoder, strict=True):
            for head, weights in zip(layer, own, strict=True):
                for row, (shares, expected) in enumerate(zip(head, weights, strict=True), 1):
                    assert np.allclose(np.array(shares) / 1000, expected[:row], atol=5.1e-4)
                    assert not expected[row:].any()


def test_the_page_shows_given_translations(run_here: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("der hund\n", encoding="utf-8")
    page = tmp_path / "page.html"
    options = ("--checkpoint", tiny_checkpoint, "--score", tmp_path / "given", "--attention-html", page)
    assert run_here("nmt-generate", *options, input=b"the dog\n").returncode == 0
    assert data_in(page)["sentences"][0]["translation"] == "der hund"


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        (["--checkpoint", "CHECKPOINT"], b"a dog\n", "--attention-html shows one model"),
        (["--output", "out", "--resume"], b"a dog\n", "--resume and --attention-html are mutually exclusive"),
        ([], b"a dog\n" * (PAGE_LINES + 1), f"--attention-html shows at most {PAGE_LINES} lines"),
        (["--attention-html", "-"], b"a dog\n", "translations go to stdout"),
        (["--output", "page.html"], b"a dog\n", "--output and --attention-html are both page.html"),
        ([], b"\n\n", "the input has only blank lines"),
        (["--max-source-tokens", "3", "--overlong", "split"], b"the dog runs on the street\n", "a line that was split"),
    ],
)
def test_requests_that_the_page_cannot_show_are_refused(
    options: list[str],
    text: bytes,
    message: str,
    run_here: Run,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [tiny_checkpoint if option == "CHECKPOINT" else option for option in options]
    page = tmp_path / "page.html"
    done = run_here("nmt-generate", "--checkpoint", tiny_checkpoint, "--attention-html", page, *given, input=text)
    assert done.returncode == 2
    assert message in done.stderr.decode().splitlines()[-1]
    assert not page.exists()


# --- in a browser

in_a_browser = pytest.mark.skipif(programs() is None, reason="chromium and chromedriver are not installed")


@pytest.fixture
def page(attentions: list[Attention], tmp_path: Path) -> str:
    write_attention_page(tmp_path / "page.html", attentions, ("en", "de"))
    return (tmp_path / "page.html").as_uri()


def rounded(weights: Any) -> Any:
    """As the page has them."""
    return np.rint(weights * 1000) / 1000


def percents(shares: Any) -> list[str]:
    """What stands beside pieces that have these shares; those below half a percent have nothing."""
    return [f"{int(share * 100 + 0.5)}%" for share in shares if share >= 0.005]


def assert_shown(browser: Browser, side: str, number: int, shares: Any) -> None:
    """A piece is marked, the others have these shares: as numbers, as lines, in words."""
    other = "to" if side == "from" else "from"
    marked = "return [...document.querySelectorAll('.here')].map(e => [e.closest('ol').id, e.dataset.number])"
    assert browser.run(marked) == [[side, str(number)]]
    assert browser.texts(f"#{other} .percent") == percents(shares)
    assert browser.texts(f"#{side} .percent") == []
    widths = "return [...document.querySelectorAll('#threads line')].map(e => Number(e.getAttribute('stroke-width')))"
    lines = [1 + 4 * share for share in shares if share >= 0.03]
    assert browser.run(widths) == pytest.approx(lines)
    assert " look" in browser.texts("#tell")[0] or " is looked at by " in browser.texts("#tell")[0]


@in_a_browser
def test_the_browser_shows_the_attention_of_a_piece_in_the_selected_head(
    page: str, attentions: list[Attention], tmp_path: Path
) -> None:
    first, _, last = attentions
    with Browser(tmp_path / "profile") as browser:
        browser.open(page)
        assert browser.run("return document.title") == "Attention"
        assert browser.run("return performance.getEntriesByType('resource').length") == 0
        assert browser.texts("#from .piece") == list(first.target)
        assert browser.texts("#to .piece") == list(first.source)
        assert len(browser.texts("#grid button")) == 2 * 3  # layers, and two heads with their mean
        browser.hover('#from [data-number="1"]')
        assert_shown(browser, "from", 1, rounded(first.cross[0]).mean(0)[1])

        browser.click('#grid [data-layer="1"][data-head="1"]')
        assert browser.run("return [...document.querySelectorAll('select')].map(e => e.value)") == ["0", "1", "1"]
        browser.hover('#to [data-number="2"]')
        assert_shown(browser, "to", 2, rounded(first.cross[1][1][:, 2]))
        browser.hover("h1")
        assert browser.texts(".here, .percent") == []

        browser.click('#kinds [data-kind="decoder"]')
        assert browser.texts("#to .piece") == ["<s>", *first.target[:-1]]
        browser.hover('#from [data-number="2"]')
        assert_shown(browser, "from", 2, rounded(first.decoder[1][1][2]))
        browser.click('#kinds [data-kind="encoder"]')
        browser.click("#layer option")
        assert len(browser.texts("#grid button")) == 3
        browser.hover('#from [data-number="3"]')
        assert_shown(browser, "from", 3, rounded(first.encoder[0][1][3]))

        browser.click('#sentence option[value="2"]')
        assert [*browser.texts("#text"), *browser.texts("#translation")] == [last.text, last.translation]
        assert browser.texts("#from .piece") == list(last.source)


@in_a_browser
def test_keys_and_taps_work_like_hovering_and_hostile_text_does_not_break_the_page(
    page: str, attentions: list[Attention], tmp_path: Path
) -> None:
    hostile, down, escape = attentions[1], "\ue015", "\ue00c"
    with Browser(tmp_path / "profile", phone=True, dark=True) as browser:
        browser.open(page)
        browser.click('#sentence option[value="1"]')
        assert browser.run("return [document.title, document.scripts.length]") == ["Attention", 2]
        assert browser.texts("#text") == [HOSTILE]
        assert browser.texts("#to .piece") == list(hostile.source)
        assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
        assert browser.run("return matchMedia('(prefers-color-scheme: dark)').matches")
        weights = rounded(hostile.cross[0]).mean(0)
        browser.click('#from [data-number="0"]')
        assert_shown(browser, "from", 0, weights[0])
        browser.type('#from [data-number="0"]', down)
        assert_shown(browser, "from", 1, weights[1])
        browser.type('#from [data-number="1"]', escape)
        assert browser.texts(".here") == []
        browser.click('#to [data-number="1"]')
        assert_shown(browser, "to", 1, weights[:, 1])
        browser.click('#to [data-number="1"]')
        assert browser.texts(".here") == []
