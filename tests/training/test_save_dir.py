"""Which checkpoints stay in a save folder, and which of them is best."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.errors import UserError
from nmtkit.storage.run_files import BEST, LAST, list_checkpoints
from nmtkit.training.config import CheckpointConfig
from nmtkit.training.save_dir import SaveDir

LOSSES = {1: 5.0, 2: 1.0, 3: 4.0, 4: 2.0, 5: None, 6: 2.0, 7: 6.0, 8: 7.0}  # None: not validated; 4 is better than 6


def lower(value: float, than: float) -> bool:
    return value < than


def higher(value: float, than: float) -> bool:
    return value > than


@pytest.mark.parametrize(("keep_last", "keep_best"), [(1, 0), (1, 2), (2, 1), (3, 2), (99, 1)])
@pytest.mark.parametrize("better", [lower, higher])
def test_the_newest_and_the_best_checkpoints_are_kept_and_no_others(
    keep_last: int,
    keep_best: int,
    better: Callable[[float, float], bool],
    make_checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
) -> None:
    sign = 1 if better is lower else -1
    save_dir = SaveDir(CheckpointConfig(save_dir=tmp_path, keep_last=keep_last, keep_best=keep_best))
    checkpoint, best = make_checkpoint(), 1
    for update, loss in LOSSES.items():
        seen = {number: LOSSES[number] for number in range(1, update + 1) if LOSSES[number] is not None}
        ranked = sorted(seen, key=lambda number: seen[number] or 0.0)
        best = ranked[0]
        checkpoint.progress = {"update": update, "best_metric": "valid", "is_best": best == update, "options": {}}
        checkpoint.progress |= {} if loss is None else {"valid": sign * loss}
        save_dir.save(update, checkpoint, better)
        newest = range(max(1, update - keep_last + 1), update + 1)
        assert {number for number, _ in list_checkpoints(tmp_path)} == {*newest, *ranked[:keep_best]}
        assert load_checkpoint(tmp_path / LAST).progress["update"] == update
        assert load_checkpoint(tmp_path / BEST).progress["update"] == best


def test_a_skipped_checkpoint_does_not_count_as_one_of_the_newest(
    make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    (tmp_path / "checkpoint_9.pt").write_bytes(b"damaged")
    save_dir = SaveDir(CheckpointConfig(save_dir=tmp_path, keep_last=1, keep_best=0))
    checkpoint = make_checkpoint()
    for update in (3, 4):
        checkpoint.progress = {"update": update, "best_metric": "valid", "is_best": False, "options": {}}
        save_dir.save(update, checkpoint, lower)
        assert [number for number, _ in list_checkpoints(tmp_path)] == [update, 9]


def test_the_recorded_validations_are_those_of_the_kept_checkpoints(
    make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    save_dir = SaveDir(CheckpointConfig(save_dir=tmp_path, keep_last=1, keep_best=1))
    checkpoint = make_checkpoint()
    for update, value in enumerate([2.0, 1.0, 3.0, 4.0], 1):
        checkpoint.progress = {"update": update, "best_metric": "valid", "is_best": update == 2, "valid": value}
        save_dir.save(update, checkpoint, lower)
    assert load_checkpoint(tmp_path / LAST).progress["checkpoint_validations"] == [[2, 1.0], [4, 4.0]]


@pytest.mark.parametrize("last", [True, False])
def test_a_copy_of_the_last_checkpoint_alone_resumes_and_one_of_the_best_is_not_replaced(
    last: bool, make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    checkpoint.progress = {
        "update": 7,
        "best_metric": "valid",
        "is_best": True,
        "valid": 1.0,
        "best": 1.0,
        "options": {},
    }
    SaveDir(CheckpointConfig(save_dir=tmp_path)).save(7, checkpoint, lower)
    for name in {"checkpoint_7.pt", LAST, BEST} - {LAST if last else BEST}:
        (tmp_path / name).unlink()
    save_dir = SaveDir(CheckpointConfig(save_dir=tmp_path))
    if not last:
        with pytest.raises(UserError, match=r"checkpoint_best\.pt would be replaced"):
            save_dir.load_newest()
        return
    newest = save_dir.load_newest()
    assert newest is not None
    assert newest.progress["update"] == 7
    save_dir.prepare({})
    assert {path.name for path in tmp_path.glob("*.pt")} == {"checkpoint_7.pt", LAST, BEST}
