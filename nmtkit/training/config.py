"""The options of training; the defaults are the paper's (§5)."""

import math
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from nmtkit.config import Config, OptionGroups, flag, option
from nmtkit.data.augmentation import DEFAULT, MODIFIERS, parse
from nmtkit.data.config import DatasetConfig
from nmtkit.decoding.config import MAX_BEAM
from nmtkit.errors import UserError
from nmtkit.model.config import DeviceConfig, ModelConfig, TransformerConfig
from nmtkit.model.lora_config import LoraConfig

AUTO = 0  # --max-tokens auto, before `capacity` resolves it
CPU_TOKENS = 4096  #: --max-tokens auto on a CPU
_VALIDATE_EVERY = 1000  # updates, unless --validate-every or --validate-epochs is given
_OF_A_MACHINE = {"verify", "num_workers", "init_from", "save_dir", "tensorboard", "device", "threads"}


@dataclass(frozen=True)
class BatchConfig(Config):
    heading: ClassVar[str] = "Batches"

    batch_tokens: int = option(25000, min=1, help="Target tokens per update, over all devices (§5.1).")
    max_tokens: int = option(
        AUTO,
        min=0,
        words={"auto": AUTO},
        unset="auto",
        help="Size of a micro-batch on one device, in tokens per side, including padding. auto: as many as fit into "
        f"GPU memory, or {CPU_TOKENS} on a CPU.",
    )
    packing: str = option(
        "auto",
        choices=("auto", "on", "off"),
        help="Concatenate sentences in micro-batches instead of padding them. auto: on GPUs that have an attention "
        "kernel for it.",
    )
    mix: str | None = option(
        None,
        metavar="N,N,…",
        unset="by size",
        help="Shares of several datasets in the target tokens of each update, such as 4,1,1.",
    )
    mix_temperature: float | None = option(
        None,
        above=0.0,
        metavar="T",
        unset="1",
        help="Without --mix, each dataset's share is proportional to its number of target tokens raised to the power "
        "1/T. Higher values favor small datasets.",
    )
    seed: int = option(1, min=0, max=2**63 - 1, help="Seed of initial weights, data order and dropout.")
    subword_sampling: float = option(
        0.0,
        min=0.0,
        max=1.0,
        metavar="P",
        help="Resample the subwords of training sentences in every epoch: BPE-dropout rate, or α of a unigram model "
        "(usually 0.1). 0: off.",
    )
    augment: str | None = option(
        None,
        metavar="NAME=P,…",
        unset="none",
        help=f"Rewrite training pairs with these probabilities, to learn from rough text: {', '.join(MODIFIERS)}. "
        f"default: {DEFAULT}.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.augment:
            parse(self.augment)
        if self.mix is not None and self.mix_temperature is not None:
            raise UserError("--mix and --mix-temperature are mutually exclusive: use one of them")
        for weight in self.weights or ():
            if not 0 < weight < math.inf:
                raise UserError(f"--mix {self.mix}: each weight must be a number above 0")

    @property
    def planned_tokens(self) -> int:
        """The maximum tokens per side in a group of sentences of similar length; an update consists of several groups.

        With packing, at most `CPU_TOKENS`: micro-batches are cut from whole updates, so GPUs can use the CPU's updates.
        """
        return min(self.max_tokens, CPU_TOKENS) if self.packing == "on" else self.max_tokens

    @property
    def weights(self) -> list[float] | None:
        """The weights given with --mix, or None."""
        if self.mix is None:
            return None
        try:
            return [float(weight) for weight in self.mix.split(",")]
        except ValueError:
            raise UserError(f"--mix {self.mix}: give numbers separated by commas, such as 4,1,1") from None


@dataclass(frozen=True)
class OptimizerConfig(Config):
    heading: ClassVar[str] = "Optimization"

    optimizer: str = option(
        "adam",
        choices=("adam", "muon", "schedule-free"),
        help="Adam (the paper), Muon for the matrices of layers with Adam for the rest, or schedule-free Adam.",
    )
    lr_schedule: str = option(
        "paper",
        choices=("paper", "inverse-sqrt", "linear", "cosine", "constant", "wsd"),
        help="Learning rate schedule after a linear warm-up. paper: d_model^-0.5 · update^-0.5 (§5.3). The others "
        "peak at --lr. linear and cosine fall to 0 at --max-updates. wsd: constant, then a linear decay to 0.",
    )
    decay_updates: int | None = option(
        None, min=1, unset="--max-updates / 5", help="Updates of the decay of --lr-schedule wsd, at the end of the run."
    )
    lr: float = option(5e-4, above=0.0, help="Peak learning rate of every schedule except paper.")
    lr_scale: float = option(1.0, above=0.0, help="Multiply the learning rate of --lr-schedule paper by this factor.")
    warmup_updates: int = option(4000, min=1, help="Updates of linear warm-up.")
    adam_beta1: float = option(0.9, min=0.0, below=1.0, help="Adam's β1.")
    adam_beta2: float = option(0.98, min=0.0, below=1.0, help="Adam's β2.")
    adam_eps: float = option(1e-9, min=1e-30, help="Adam's ε.")
    weight_decay: float = option(0.0, min=0.0, help="Decoupled weight decay (not in the paper).")
    label_smoothing: float = option(0.1, min=0.0, below=1.0, help="Label smoothing, ε_ls in the paper (§5.4).")
    r_drop: float = option(
        0.0,
        min=0.0,
        metavar="ALPHA",
        help="Compute each batch with two dropout masks, and add their divergence to the loss with this weight "
        "(R-Drop; usually 5). 0: off.",
    )
    guided_alignment: Path | None = option(
        None,
        metavar="FILE",
        help="Teach all heads of the last decoder layer to attend to aligned source pieces. FILE aligns the pieces of "
        "the first dataset's training text, in Pharaoh format (0-0 1-2), in the order of the text before filters.",
    )
    guided_alignment_weight: float = option(0.1, above=0.0, help="Weight of --guided-alignment in the loss.")
    clip_norm: float = option(0.0, min=0.0, help="Clip gradients to this norm. 0: off.")
    ema: float = option(
        0.0,
        min=0.0,
        below=1.0,
        metavar="DECAY",
        help="Validate and translate with a moving average of the weights. Usual decay: 0.9999. 0: off.",
    )
    max_skips: int = option(
        10, min=1, help="Stop after this many consecutive updates with a gradient that is not finite."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer == "schedule-free":
            if self.lr_schedule != "constant":
                raise UserError("--optimizer schedule-free needs --lr-schedule constant: it replaces the decay")
            if self.ema or not self.adam_beta1:
                raise UserError("--optimizer schedule-free keeps an average of its own: omit --ema and --adam-beta1 0")

    @property
    def keeps_average(self) -> bool:
        """Whether checkpoints contain an average of the weights."""
        return self.ema > 0 or self.optimizer == "schedule-free"


@dataclass(frozen=True)
class StopConfig(Config):
    heading: ClassVar[str] = "When to stop"

    max_updates: int = option(100_000, min=1, help="Stop after this many updates.")
    max_epochs: int | None = option(None, min=1, help="Stop after this many epochs.")
    max_minutes: float | None = option(
        None, above=0.0, help="Stop after this many minutes of training, including those before the run was resumed."
    )
    budget: str | None = option(
        None,
        metavar="TIME",
        help="Choose model, batches, schedule and updates so that training ends in this time, such as 30m, 2h or 1d, "
        "and average the last checkpoints. Explicit options take precedence.",
    )
    patience: int | None = option(None, min=1, help="Stop after this many consecutive validations without improvement.")
    dry_run: bool = option(False, help="Check everything, time one update, and exit. Writes nothing.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.budget_minutes  # raises UserError if invalid

    @property
    def budget_minutes(self) -> float:
        """The value of --budget in minutes; 0 without the option. Raises UserError if it is malformed."""
        if self.budget is None:
            return 0.0
        time = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([mhd])", self.budget, re.ASCII)
        if time is None or not float(time[1]):
            raise UserError(f"--budget {self.budget} is not a time: give minutes, hours or days, such as 30m, 2h or 1d")
        return float(time[1]) * {"m": 1, "h": 60, "d": 1440}[time[2]]


@dataclass(frozen=True)
class ValidationConfig(Config):
    heading: ClassVar[str] = "Validation"

    validate_every: int | None = option(
        None, min=1, unset="1000; none with --validate-epochs", help="Updates between validations on the split valid."
    )
    validate_epochs: int | None = option(
        None, min=1, help="Validate every N epochs. --patience then counts only these validations."
    )
    valid_bleu: bool = option(
        False, help="Also translate the split valid, and select the best checkpoint by sacreBLEU."
    )
    valid_beam: int = option(1, min=1, max=MAX_BEAM, help="Beam size of --valid-bleu. 1: greedy search.")

    @property
    def updates(self) -> int | None:
        """The number of updates between validations; None to validate only at the end of epochs."""
        return _VALIDATE_EVERY if self.validate_every is self.validate_epochs is None else self.validate_every


@dataclass(frozen=True)
class CheckpointConfig(Config):
    heading: ClassVar[str] = "Checkpoints and logs"

    save_dir: Path = option(
        Path("checkpoints"), metavar="DIR", help="Folder of checkpoints. Training resumes from the newest one in it."
    )
    save_every: int | None = option(
        None, min=1, help="Updates between checkpoints, in addition to one at each validation."
    )
    save_epochs: int | None = option(
        None,
        min=1,
        help="Save every N epochs. --keep-last and nmt-average --last then count only these checkpoints and those of "
        "--save-every. Other checkpoints are replaced by the next one.",
    )
    save_minutes: float = option(
        10.0,
        min=0.0,
        help="Minutes between checkpoints (10 in §6.1). 0: off; --keep-last then ignores checkpoints saved on a "
        "signal.",
    )
    keep_last: int = option(10, min=1, metavar="N", help="Keep the newest N checkpoints.")
    keep_best: int = option(1, min=0, metavar="N", help="Also keep the best N checkpoints.")
    log_every: int = option(100, min=1, metavar="N", help="Updates between log lines.")
    tensorboard: Path | None = option(None, metavar="DIR", help="Also write metrics for TensorBoard.")


@dataclass(frozen=True)
class ComputeConfig(Config):
    heading: ClassVar[str] = "Speed and memory"

    num_workers: int = option(
        1, min=0, max=1024, help="Threads that prepare micro-batches ahead of time. 0: none. Does not change results."
    )
    activation_checkpointing: bool = option(
        False, help="Recompute activations in the backward pass: less memory, more time, same results."
    )
    compile: bool = option(
        False, help="Compile the model with torch.compile, on a GPU. Startup takes a minute or more."
    )


@dataclass(frozen=True)
class FineTuningConfig(Config):
    heading: ClassVar[str] = "Fine-tuning, and resuming with changes"

    init_from: Path | None = option(
        None,
        metavar="CHECKPOINT",
        help="Initialize the weights from this checkpoint, and the model options unless --arch is given. Ignored once "
        "--save-dir contains checkpoints.",
    )
    freeze: tuple[str, ...] = option(
        (), metavar="PATTERN", help="Do not train parameters with matching names, such as 'encoder.*'. Repeatable."
    )
    reset_progress: bool = option(
        False, help="Resume at epoch 1 and forget the best validation. Allows different data."
    )


@dataclass(frozen=True)
class TrainingOptions(OptionGroups):
    """All options of a training run."""

    reading: DatasetConfig = field(default_factory=DatasetConfig)
    model: ModelConfig = field(default_factory=TransformerConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    fine_tuning: FineTuningConfig = field(default_factory=FineTuningConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)

    def __post_init__(self) -> None:
        batches = self.batches
        changes_pairs = batches.packing == "on" or batches.subword_sampling or batches.augment
        if self.optimizer.guided_alignment and (changes_pairs or not isinstance(self.model, TransformerConfig)):
            raise UserError(
                "--guided-alignment supports only Transformers, and none of --packing on, --subword-sampling and "
                "--augment: omit it, or the others"
            )

    @classmethod
    def groups(cls) -> dict[str, type[Config]]:
        """Map each group of options to its class, except the model, whose class depends on the architecture."""
        return {name: kind for name, kind in super().groups().items() if name != "model"}

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return all options as plain values by group."""
        return {part.name: getattr(self, part.name).to_dict() for part in fields(self)}

    def common(self) -> dict[str, Any]:
        """Return the options, by flag, that all processes of a run must share."""
        groups = self.to_dict().values()
        return {flag(name): value for group in groups for name, value in group.items() if name not in _OF_A_MACHINE}
