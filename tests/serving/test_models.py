"""Several models in one server: which of them answers a request, and what is refused."""

import http.client
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import Run
from patience import PATIENCE
from running_server import SEARCH, Server

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.importers import find_importer
from nmtkit.serving.config import ServeConfig

NLLB = Path(__file__).parents[1] / "conversion/foreign/nllb"
LINE = "the dog runs on the street"
PAIRS = {"en-de": 1, "en-pt-BR": 2, "de-en": 3}  # with the seeds of their models


@pytest.fixture(scope="module")
def files(make_checkpoint: Callable[..., Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for pair, seed in PAIRS.items():
        save_checkpoint(folder / f"{pair}.pt", make_checkpoint(seed))
    return {pair: folder / f"{pair}.pt" for pair in PAIRS}


@pytest.fixture(scope="module")
def server(files: dict[str, Path]) -> Iterator[Server]:
    running = Server(files, "--no-repetition-guard")
    yield running
    assert running.end() == (143, "nmt-serve: terminated\n")


@pytest.fixture(scope="module")
def expected(files: dict[str, Path]) -> dict[str, str]:
    """The translation of `LINE` by each model."""
    found = {}
    for pair, file in files.items():
        (found[pair],) = Translator.from_checkpoint(file, device="cpu", precision="fp32").translate([LINE], **SEARCH)
    assert len(set(found.values())) == len(PAIRS)
    return found


def ask(server: Server, **values: Any) -> tuple[int, Any]:
    status, body, _ = server.request("POST", "/translate", json.dumps(values))
    return status, json.loads(body)


@pytest.mark.parametrize(
    ("languages", "pair"),
    [
        ({"source": "en", "target": "de"}, "en-de"),
        ({"source": "auto", "target": "pt-BR"}, "en-pt-BR"),
        ({"source": "de"}, "de-en"),
        ({"source_lang": "EN", "target_lang": "PT-BR"}, "en-pt-BR"),
        ({"source": None, "target": "DE"}, "en-de"),
    ],
)
def test_a_request_is_translated_by_the_model_of_its_languages(
    server: Server, expected: dict[str, str], languages: dict[str, str], pair: str
) -> None:
    assert server.translate(text=LINE, **languages)[0]["text"] == expected[pair]
    if "source_lang" not in languages:
        _, answer = ask(server, q=LINE, **languages)
        assert answer["translatedText"] == expected[pair]
        assert answer.get("detectedLanguage", {}).get("language") == ("en" if "auto" in languages.values() else None)


def test_a_document_is_translated_by_the_model_of_its_languages(server: Server, expected: dict[str, str]) -> None:
    parts = {'file"; filename="a.txt': LINE, "source": "en", "target": "pt-BR", "api_key": ""}
    body = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in parts.items()
    )
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request(
        "POST", "/translate_file", f"{body}--x--\r\n", {"content-type": "multipart/form-data; boundary=x"}
    )
    address = json.loads(connection.getresponse().read())["translatedFileUrl"]
    connection.close()
    assert server.request("GET", address.removeprefix(server.address))[1].decode() == expected["en-pt-BR"]


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ({}, "several models fit: give source and target of one of en-de, en-pt-BR, de-en"),
        ({"source": "en"}, "several models fit: give source and target of one of en-de, en-pt-BR, de-en"),
        ({"source": "pt-BR"}, 'no model for source "pt-br": the language pairs are en-de, en-pt-BR, de-en'),
        ({"source": "de", "target": "pt-BR"}, 'no model for source "de" and target "pt-br": the language pairs are '),
        ({"target_lang": ["de"]}, "target: a string is expected"),
    ],
)
def test_languages_without_one_model_are_answered_400(server: Server, languages: dict[str, Any], message: str) -> None:
    status, answer = ask(server, text=LINE, **languages)
    assert status == 400
    assert answer["error"].startswith(message)


def test_languages_health_and_metrics_list_every_model(server: Server) -> None:
    targets = {"en": ["de", "pt-BR"], "de": ["en"], "pt-BR": []}
    languages = json.loads(server.request("GET", "/languages")[1])
    assert languages == [{"code": code, "name": code, "targets": own} for code, own in targets.items()]
    models = json.loads(server.request("GET", "/health")[1])["models"]
    shown = {f"{each['source_language']}-{each['target_language']}": each["model"] for each in models}
    assert shown == {pair: f"{pair}.pt" for pair in PAIRS}
    metrics = server.request("GET", "/metrics")[1].decode()
    assert all(f'model="{pair}.pt",source="' in metrics for pair in PAIRS)
    assert metrics.count("nmtkit_model_info{") == len(PAIRS)


def test_cut_outputs_are_counted_and_not_logged(server: Server) -> None:
    before = server.metric("cut_total")
    (answer,) = server.translate(text=LINE, source="en", target="de")
    assert server.metric("cut_total") == before + answer["cut"]  # the fixture compares the log


def test_a_failed_reload_keeps_one_model_and_reloads_the_others(files: dict[str, Path], tmp_path: Path) -> None:
    own = {pair: tmp_path / file.name for pair, file in files.items()}
    for pair, file in own.items():
        file.write_bytes(files[pair].read_bytes())
    server = Server(own, start_new_session=True)
    save_checkpoint(own["en-de"], replace(load_checkpoint(files["en-de"]), progress={"update": 9}))
    own["en-pt-BR"].unlink()
    server.process.send_signal(signal.SIGHUP)
    log = server.process.stderr
    assert log is not None
    said = [log.readline().decode() for _ in PAIRS]
    for line, words in zip(
        said, ("reloaded en-de.pt", "cannot reload en-pt-BR.pt, the", "reloaded de-en"), strict=True
    ):
        assert words in line
    updates = [model["update"] for model in json.loads(server.request("GET", "/health")[1])["models"]]
    assert updates == ["9", "2", "3"]
    assert ask(server, text=LINE, target="pt-BR")[0] == 200
    server.end()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "en-de=a.pt", "--model", "en-de=b.pt"], "--model: two models have the same languages"),
        (["--model", "en-de=a.pt", "--model", "EN-DE=b.pt"], "--model: two models have the same languages"),
        (["--model", "a.pt"], "--model a.pt is not a language pair and a file: use one such as en-de=averaged.pt"),
        (["--model", "en-de=a.pt", "--checkpoint", "a.pt"], "--checkpoint and --model are mutually exclusive"),
        (["--model", "en-de=a.pt"], "a.pt: No such file or directory"),
        ([], "no model to serve: use --checkpoint FILE, or --model PAIR=FILE"),
        (["--checkpoint", "a.pt", "--fd", 3, "--port", 80], "--port has no effect with --fd"),
        (["--checkpoint", "a.pt", "--fd", 3, "--host", "::"], "--host has no effect with --fd"),
    ],
)
def test_ambiguous_options_are_refused(arguments: list[object], message: str, run_here: Run) -> None:
    done = run_here("nmt-serve", *arguments)
    assert done.returncode == 2
    assert message in done.stderr.decode()


def test_a_language_may_have_a_region_or_script() -> None:
    for pair in (("pt-BR", "en"), ("en", "zh-Hans"), ("es-419", "en-GB"), ("EN", "DE"), ("deu_Latn", "eng_Latn")):
        assert ServeConfig(model=(f"{'-'.join(pair)}=a-b=c.pt",)).models == {pair: Path("a-b=c.pt")}


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("safetensors")
    path = tmp_path_factory.mktemp("nllb") / "nllb.pt"
    save_checkpoint(path, find_importer(NLLB).read(NLLB, ImportConfig()))
    return path


def test_a_model_with_language_codes_translates_between_the_languages_of_each_request(multilingual: Path) -> None:
    server = Server(multilingual, "--no-repetition-guard", "--source-lang", "en")
    try:
        for source, target in (("en", "de"), ("deu_Latn", "eng_Latn")):
            translator = Translator.from_checkpoint(
                multilingual, source_lang=source, target_lang=target, device="cpu", precision="fp32"
            )
            (text,) = translator.translate([LINE], **SEARCH)
            (answer,) = server.translate(text=LINE, source=source, target=target)
            assert answer["text"] == text
            assert ask(server, q=LINE, source=source, target=target) == (200, {"translatedText": text})
        status, answer = ask(server, text=LINE, target="en")
        assert (status, list(answer)) == (200, ["translations"])  # from the language of the option
        assert ask(server, text=LINE) == (400, {"error": "give source and target"})
        status, answer = ask(server, text=LINE, target="deut")
        expected = "language 'deut' is not one of the model's 202 languages"
        assert (status, answer["error"].partition(":")[0]) == (400, expected)
        assert len(json.loads(server.request("GET", "/languages")[1])) == 202
    finally:
        server.end()
