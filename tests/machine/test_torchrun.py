"""The environment variables of torchrun, complete, incomplete, and left over from another program."""

import pytest

from nmtkit.errors import UserError
from nmtkit.machine.torchrun import Place, place_of_process, place_or_alone

COMPLETE = {
    "WORLD_SIZE": "4",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def set_variables(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in COMPLETE:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_torchrun_gives_each_process_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, COMPLETE)
    assert place_of_process() == Place(rank=3, size=4, local_rank=1, local_size=2)


def test_a_process_without_world_size_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler may leave the other variables."""
    set_variables(monkeypatch, {"RANK": "3", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"})
    assert place_of_process() == Place(rank=0, size=1, local_rank=0, local_size=1)


@pytest.mark.parametrize("missing", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_a_missing_variable_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, {name: value for name, value in COMPLETE.items() if name != missing})
    with pytest.raises(UserError, match=f"WORLD_SIZE=4 without {missing}"):
        place_of_process()


@pytest.mark.parametrize(("name", "value"), [("WORLD_SIZE", "0"), ("RANK", "4"), ("LOCAL_RANK", "abc")])
def test_a_malformed_variable_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, {**COMPLETE, name: value})
    with pytest.raises(UserError, match=f"^{name}={value}"):
        place_of_process()
    assert place_or_alone() == Place()
