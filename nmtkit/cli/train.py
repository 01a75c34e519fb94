"""nmt-train: trains a model on datasets."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from nmtkit.cli.command import command
from nmtkit.cli.options import Choice, ConfigOption, PathName, flags, given, options, prefer_command_line, refuse_idle
from nmtkit.cli.other_toolkits import ARCHITECTURES
from nmtkit.config import flag
from nmtkit.console.log import LogConfig, configure
from nmtkit.errors import UserError
from nmtkit.machine.torchrun import place_of_process
from nmtkit.model.architectures import config_from_dict
from nmtkit.model.config import ModelConfig
from nmtkit.model.lora_config import LoraConfig
from nmtkit.model.presets import PRESETS
from nmtkit.training.config import CheckpointConfig, TrainingOptions

# The option classes of all architectures.
MODEL_CONFIGS = tuple(dict.fromkeys(preset.config for preset in PRESETS.values()))
LORA = tuple(field.name for field in fields(LoraConfig) if field.name != "lora_rank")


def choose_model(values: dict[str, Any]) -> None:
    """Combine the model options in `values` to one value `model`, and set options not given to the preset of --arch, or
    with only --init-from to the options of the checkpoint."""
    arch = values.pop("arch")
    names = {field.name for config in MODEL_CONFIGS for field in fields(config)}
    of_models = {name: values.pop(name) for name in names}
    if values.get("init_from") is not None and not given("arch"):
        model = _initial_model(values["init_from"], values["save_dir"])
        reason = f"with a model of the architecture {model.arch}"
    else:
        preset = PRESETS[arch]
        values |= {name: value for name, value in preset.options.items() if name in values and not given(name)}
        model, reason = preset.model_config(), f"with --arch {arch}"
    used = {field.name for field in fields(model)}
    refuse_idle(of_models, names - used, reason)
    chosen = _with_given(model, of_models, used)
    idle = chosen.ineffective()
    for name, other in idle.items():
        refuse_idle(of_models, [name], f"with {flag(other)} {getattr(chosen, other)}")
    values["model"] = _with_given(model, of_models, used - idle.keys())


def _with_given(model: ModelConfig, values: dict[str, Any], names: set[str]) -> ModelConfig:
    return replace(model, **{name: values[name] for name in names if given(name)})


def _initial_model(init_from: Path, save_dir: Path) -> ModelConfig:
    """Read the model's options from the run in the save folder, or else from --init-from."""
    from nmtkit.checkpoint import read_model_config
    from nmtkit.training.save_dir import SaveDir

    resumed = SaveDir(CheckpointConfig(save_dir=save_dir)).read_options()
    return read_model_config(init_from) if resumed is None else config_from_dict(resumed["model"])


def given_options() -> dict[str, Any]:
    """The options that the user or the preset of --arch has set, by name."""
    context = click.get_current_context()
    of_preset = PRESETS[context.params["arch"]].options if given("arch") else {}
    return of_preset | {name: value for name, value in context.params.items() if given(name) and name != "dataset"}


def refuse_idle_options(values: dict[str, Any]) -> None:
    """Raise UserError for options without effect, because such a mistake would waste a long run."""
    prefer_command_line(values, "mix", "mix_temperature")
    is_planned = values["budget"] and not given("lr_schedule")
    schedule = "linear" if is_planned else values["lr_schedule"]  # of all plans
    if schedule == "paper":
        refuse_idle(values, ["lr"], "with --lr-schedule paper: use --lr-scale, or a different schedule")
    else:
        refuse_idle(values, ["lr_scale"], f"with --lr-schedule {schedule}: use --lr")
    if schedule != "wsd":
        refuse_idle(values, ["decay_updates"], f"with --lr-schedule {schedule}: use wsd")
    if len(values["dataset"]) == 1:
        refuse_idle(values, ["mix", "mix_temperature"], "with one dataset: give several")
    if not values["valid_bleu"]:
        refuse_idle(values, ["valid_beam"], "without --valid-bleu")
    if not values["guided_alignment"]:
        refuse_idle(values, ["guided_alignment_weight"], "without --guided-alignment")
    if not values["lora_rank"]:
        refuse_idle(values, LORA, "without --lora-rank")
    elif values["init_from"] is None:
        raise UserError("--lora-rank adapts the weights of a model: give --init-from")
    if last := values["max_epochs"]:
        never = [name for name in ("validate_epochs", "save_epochs") if (values[name] or 0) > last]
        refuse_idle(values, never, f"with --max-epochs {last}: use at most {last}")


@command(
    "nmt-train",
    common="save_dir arch budget dry_run max_updates max_epochs patience batch_tokens max_tokens dropout lr_schedule "
    "lr warmup_updates validate_every valid_bleu keep_last init_from seed device precision threads tensorboard config",
    on_all_ranks=True,
)
@click.argument("dataset", nargs=-1, required=True, type=PathName(), metavar="DATASET...")
@click.option(
    "--arch",
    cls=ConfigOption,
    heading=ModelConfig.heading,
    type=Choice(list(PRESETS), others=ARCHITECTURES),
    default="transformer_base",
    show_default=True,
    metavar="NAME",
    help="Preset of model and training options: transformer_base, _big, _small, _tiny, transformer_modern, "
    "_modern_small, _modern_tiny, table3_… (rows of the paper's Table 3), gnmt, lstm_small, convs2s, conv_small, "
    "student_tiny, _base_memory, _base. "
    "Defaults shown here are those of transformer_base. "
    "With --init-from, the default is that model.",
)
@flags(*MODEL_CONFIGS)
@options(choose_model, refuse_idle_options, **TrainingOptions.groups(), log=LogConfig)
def main(dataset: tuple[Path, ...], log: LogConfig, **groups: Any) -> None:
    """Train a model on DATASET, a folder written by nmt-preprocess, or on several datasets.

    \b
    nmt-train data-bin/en-de --save-dir checkpoints/en-de --budget 2h
    nmt-train data-bin/en-de --save-dir checkpoints/en-de
    nmt-train data-bin/en-de --save-dir checkpoints/big --arch transformer_big --max-updates 300000 --precision bf16
    nmt-train data-bin/news data-bin/web --mix 3,1 --save-dir checkpoints/mixed
    torchrun --nproc-per-node 8 --no-python nmt-train data-bin/en-de --save-dir checkpoints/en-de

    Training is resumable: the same command resumes an interrupted run from its newest checkpoint, and ends with the
    same weights as a run without interruption. Sections (§) are those of "Attention Is All You Need".
    """
    configure(log, is_main=place_of_process().rank == 0)
    from nmtkit.training.trainer import train  # imports torch, which --help does not need

    first, *others = dataset
    train(first, TrainingOptions(**groups), others, given=given_options())
