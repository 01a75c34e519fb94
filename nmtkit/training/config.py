"""The options of training; the defaults are the paper's (§5)."""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from nmtkit.config import Config, OptionGroups, flag, option
from nmtkit.data.config import DatasetConfig
from nmtkit.decoding.config import MAX_BEAM
from nmtkit.errors import UserError
from nmtkit.model.config import DeviceConfig, ModelConfig, TransformerConfig
from nmtkit.model.lora_config import LoraConfig

AUTO = 0  # --max-tokens, before `capacity` determines it
CPU_TOKENS = 4096  #: --max-tokens auto on a CPU
_VALIDATE_EVERY = 1000  # updates, unless --validate-every or --validate-epochs is given
_OF_A_MACHINE = {"verify", "num_workers", "init_from", "save_dir", "tensorboard", "device", "threads"}


@dataclass(frozen=True)
class BatchConfig(Config):
    heading: ClassVar[str] = "Batches"

    batch_tokens: int = option(25000, min=1, help="Target tokens of one update, over all devices (§5.1).")
    max_tokens: int = option(
        AUTO,
        min=0,
        words={"auto": AUTO},
        unset="auto",
        help="Limit of one micro-batch on one device: tokens of source and of target, with padding. Packing adds "
        "1 to 128 tokens of padding to each. auto: on a GPU as many as fit into its memory, at most --batch-tokens "
        f"divided by the devices, determined when a run begins; {CPU_TOKENS} on a CPU.",
    )
    packing: str = option(
        "auto",
        choices=("auto", "on", "off"),
        help="Concatenate sentences of all lengths in micro-batches, without padding. auto: on GPUs where torch has an "
        "attention kernel for it, for a Transformer in 16 bits without attention dropout.",
    )
    mix: str | None = option(
        None,
        metavar="N,N,…",
        unset="by size",
        help="Weights of several datasets, such as 4,1,1: their shares of the target tokens of each update.",
    )
    mix_temperature: float | None = option(
        None,
        above=0.0,
        metavar="T",
        unset="1",
        help="Without --mix, the share of a dataset is proportional to its target tokens to the power of 1/T: higher "
        "values favor small datasets.",
    )
    seed: int = option(1, min=0, max=2**63 - 1, help="Seed of initial weights, data order and dropout.")
    subword_sampling: float = option(
        0.0,
        min=0.0,
        max=1.0,
        metavar="P",
        help="Sample the pieces of training sentences anew in every epoch: the share of BPE merges to drop, or α of a "
        "unigram model (0.1 is usual for both); 0: never. Updates are planned by the stored pieces.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mix is not None and self.mix_temperature is not None:
            raise UserError("--mix and --mix-temperature are mutually exclusive: use one of them")
        for weight in self.weights or ():
            if not 0 < weight < math.inf:
                raise UserError(f"--mix {self.mix}: each weight must be a number above 0")

    @property
    def planned_tokens(self) -> int:
        """The limit of the groups of sentences of similar lengths from which an update is made.

        With packing, it is at most that of a CPU. Micro-batches are then cut from the whole update, so that its
        sentences can differ in length, and are those of an update on a CPU.
        """
        return min(self.max_tokens, CPU_TOKENS) if self.packing == "on" else self.max_tokens

    @property
    def weights(self) -> list[float] | None:
        """The numbers of --mix, or None."""
        if self.mix is None:
            return None
        try:
            return [float(weight) for weight in self.mix.split(",")]
        except ValueError:
            raise UserError(f"--mix {self.mix}: give numbers separated by commas, such as 4,1,1") from None

    @property
    def proportions(self) -> list[float] | None:
        """The numbers of --mix relative to the largest, or None."""
        weights = self.weights
        return None if weights is None else [weight / max(weights) for weight in weights]


@dataclass(frozen=True)
class LoadingConfig(Config):
    heading: ClassVar[str] = BatchConfig.heading

    num_workers: int = option(
        1, min=0, max=1024, help="Threads that prepare micro-batches ahead of time; 0: none. Does not change results."
    )


@dataclass(frozen=True)
class OptimizerConfig(Config):
    heading: ClassVar[str] = "Optimization"

    lr_schedule: str = option(
        "paper",
        choices=("paper", "inverse-sqrt", "linear", "cosine", "constant"),
        help="Learning rate schedule; each begins with a linear warm-up. paper: d_model^-0.5 · min(update^-0.5, "
        "update · warmup^-1.5) (§5.3); the others rise to --lr, then fall or stay; linear and cosine would reach 0 "
        "one update after --max-updates.",
    )
    lr: float = option(5e-4, above=0.0, help="Highest learning rate of every schedule except the paper's.")
    lr_scale: float = option(1.0, above=0.0, help="Multiplies the paper's schedule.")
    warmup_updates: int = option(4000, min=1, help="Updates of linear warm-up.")
    adam_beta1: float = option(0.9, min=0.0, below=1.0, help="Adam's β1.")
    adam_beta2: float = option(0.98, min=0.0, below=1.0, help="Adam's β2.")
    adam_eps: float = option(1e-9, min=1e-30, help="Adam's ε.")
    weight_decay: float = option(0.0, min=0.0, help="Decoupled weight decay (not in the paper).")
    label_smoothing: float = option(0.1, min=0.0, below=1.0, help="ε_ls (§5.4).")
    clip_norm: float = option(0.0, min=0.0, help="Scale larger gradients down to this norm; 0: never.")
    ema: float = option(
        0.0,
        min=0.0,
        below=1.0,
        metavar="DECAY",
        help="Keep a moving average of the weights (0.9999 is usual), and validate and translate with it; 0: none.",
    )
    max_skips: int = option(10, min=1, help="Stop after this many updates in a row with a gradient that is not finite.")


@dataclass(frozen=True)
class StopConfig(Config):
    heading: ClassVar[str] = "When to stop"

    max_updates: int = option(100_000, min=1, help="Stop after this many updates.")
    max_epochs: int | None = option(None, min=1, help="Stop after this many epochs.")
    max_minutes: float | None = option(
        None, above=0.0, help="Stop after this much training time, including earlier starts of the run."
    )
    patience: int | None = option(None, min=1, help="Stop after this many validations in a row without a new best.")
    dry_run: bool = option(False, help="Check everything, time one update, and exit; nothing is written.")


@dataclass(frozen=True)
class ValidationConfig(Config):
    heading: ClassVar[str] = "Validation"

    validate_every: int | None = option(
        None,
        min=1,
        metavar="N",
        unset="1000; none with --validate-epochs",
        help="Updates between validations on split 'valid'.",
    )
    validate_epochs: int | None = option(
        None,
        min=1,
        metavar="N",
        help="Validate at the end of every N-th epoch; --patience then counts only these validations.",
    )
    valid_bleu: bool = option(False, help="Also translate it, and select the best checkpoint by sacreBLEU.")
    valid_beam: int = option(1, min=1, max=MAX_BEAM, help="Beam for --valid-bleu; 1 is greedy.")

    @property
    def updates(self) -> int | None:
        """Updates between validations; None to validate at the end of epochs only."""
        return _VALIDATE_EVERY if self.validate_every is self.validate_epochs is None else self.validate_every


@dataclass(frozen=True)
class CheckpointConfig(Config):
    heading: ClassVar[str] = "Checkpoints and logs"

    save_dir: Path = option(
        Path("checkpoints"), metavar="DIR", help="Folder of checkpoints; training resumes from those in it."
    )
    save_every: int | None = option(
        None, min=1, metavar="N", help="Updates between checkpoints; there is also one at each validation."
    )
    save_epochs: int | None = option(
        None,
        min=1,
        metavar="N",
        help="Save at the end of every N-th epoch. --keep-last and nmt-average --last then count these checkpoints and "
        "those of --save-every; the next checkpoint replaces any other.",
    )
    save_minutes: float = option(
        10.0,
        min=0.0,
        help="Minutes between checkpoints (10 in §6.1); 0: none, and --keep-last ignores checkpoints saved by signals.",
    )
    keep_last: int = option(10, min=1, metavar="N", help="Keep the newest N checkpoints.")
    keep_best: int = option(1, min=0, metavar="N", help="Also keep the best N checkpoints.")
    log_every: int = option(100, min=1, metavar="N", help="Updates between log lines.")
    tensorboard: Path | None = option(None, metavar="DIR", help="Also write the numbers for TensorBoard.")


@dataclass(frozen=True)
class ComputeConfig(Config):
    heading: ClassVar[str] = "Speed and memory"

    activation_checkpointing: bool = option(
        False, help="Recompute activations inside layers in the backward pass: less memory, more time, same result."
    )
    compile: bool = option(
        False, help="For GPUs: compile the model with torch.compile. The start takes a minute or more."
    )


@dataclass(frozen=True)
class FineTuningConfig(Config):
    heading: ClassVar[str] = "Fine-tuning, and resuming with changes"

    init_from: Path | None = option(
        None,
        metavar="CHECKPOINT",
        help="Initial weights, and model options unless --arch is given; ignored once --save-dir holds checkpoints.",
    )
    freeze: tuple[str, ...] = option(
        (),
        metavar="PATTERN",
        help="Do not train the parameters with matching names, such as 'encoder.*'; can be given several times.",
    )
    reset_progress: bool = option(
        False, help="Resume at epoch 1, also of other data, without a best validation so far."
    )


@dataclass(frozen=True)
class TrainingOptions(OptionGroups):
    """All options of a training run."""

    reading: DatasetConfig = field(default_factory=DatasetConfig)
    model: ModelConfig = field(default_factory=TransformerConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    loading: LoadingConfig = field(default_factory=LoadingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    fine_tuning: FineTuningConfig = field(default_factory=FineTuningConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)

    @classmethod
    def groups(cls) -> dict[str, type[Config]]:
        """The class of each group of options by its name, except the model's, which depends on the architecture."""
        return {name: kind for name, kind in super().groups().items() if name != "model"}

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """All options as plain values, group by group."""
        return {part.name: getattr(self, part.name).to_dict() for part in fields(self)}

    def common(self) -> dict[str, Any]:
        """The options, by flag, that all processes of a run must share."""
        groups = self.to_dict().values()
        return {flag(name): value for group in groups for name, value in group.items() if name not in _OF_A_MACHINE}
