"""Options of the models whose output matrix can be separate from shared embeddings: all but the Transformer."""

from dataclasses import dataclass, replace
from typing import TypeVar

from nmtkit.config import option
from nmtkit.model.config import ModelConfig, resolve_sharing

C = TypeVar("C", bound="SeparateOutputConfig")


@dataclass(frozen=True)
class SeparateOutputConfig(ModelConfig):
    """Base of the options of such an architecture."""

    share_embeddings: str | None = option(
        None,
        choices=("all", "decoder", "none"),
        unset="all, or decoder where the vocabularies are separate",
        help="One matrix for source, target and output; one for target and output; or three.",
    )
    separate_output: bool = option(
        True, file_only=True, help="Give the output a matrix of its own, whatever --share-embeddings is."
    )

    @property
    def has_tied_output(self) -> bool:
        """Whether the output matrix is the target embedding."""
        return not self.separate_output and self.share_embeddings != "none"

    def for_vocabularies(self: C, joined: bool) -> C:
        """Resolve `share_embeddings`. Raises UserError for "all" with separate vocabularies."""
        return replace(self, share_embeddings=resolve_sharing(self.share_embeddings, joined))
