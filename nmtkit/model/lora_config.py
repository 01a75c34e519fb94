"""The options of low-rank adaptation (LoRA, Hu et al. 2021)."""

from dataclasses import dataclass
from typing import ClassVar

from nmtkit.config import Config, option

_TARGETS = ("*attention*",)


@dataclass(frozen=True)
class LoraConfig(Config):
    heading: ClassVar[str] = "Low-rank adaptation (LoRA)"

    lora_rank: int = option(
        0,
        min=0,
        max=10**4,
        metavar="R",
        help="Freeze the weights of --init-from and train a low-rank update of rank R for each target matrix. 0: off.",
    )
    lora_alpha: float | None = option(
        None, above=0.0, metavar="ALPHA", unset="the rank", file_only=True, help="Multiply the updates by ALPHA / R."
    )
    lora_targets: tuple[str, ...] = option(
        (),
        metavar="PATTERN",
        unset=" ".join(_TARGETS),
        file_only=True,
        help="Names of the matrices to adapt, such as '*feed_forward*'.",
    )
    lora_train: tuple[str, ...] = option(
        (),
        metavar="PATTERN",
        file_only=True,
        help="Also train the full parameters with matching names, such as '*embedding*'.",
    )

    @property
    def targets(self) -> tuple[str, ...]:
        """The patterns in --lora-targets."""
        return self.lora_targets or _TARGETS

    @property
    def scale(self) -> float:
        """The scale factor of the LoRA update, --lora-alpha / --lora-rank."""
        return (self.lora_alpha or self.lora_rank) / self.lora_rank

    def describe(self) -> str:
        """Describe the options in one line, as typed."""
        if not self.lora_rank:
            return "no --lora-rank"
        words = [f"--lora-rank {self.lora_rank}", f"--lora-alpha {self.scale * self.lora_rank:g}"]
        words += [f"--lora-targets '{pattern}'" for pattern in self.targets]
        return " ".join([*words, *(f"--lora-train '{pattern}'" for pattern in self.lora_train)])
