"""Loss, perplexity and, on request, BLEU on the validation split."""

import numpy as np
import torch

from nmtkit.data.batch import collate
from nmtkit.data.batching import cut
from nmtkit.data.corpus import Dataset
from nmtkit.decoding.config import SearchConfig, StreamConfig
from nmtkit.decoding.scoring import bleu, tokenized_bleu
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.model.transformer import Transformer
from nmtkit.tokenizer import SPACE
from nmtkit.training.config import ValidationConfig
from nmtkit.training.loss import perplexity, projected_cross_entropy
from nmtkit.vocab import PAD

VALIDATION = "valid"


class Validator:
    """Measures a model on the split `valid`. `metric` names the result that decides which checkpoint is best."""

    def __init__(self, dataset: Dataset, config: ValidationConfig, max_tokens: int, smoothing: float) -> None:
        self.config, self.smoothing, self.max_tokens = config, smoothing, max_tokens
        self.metric = "valid_bleu" if config.valid_bleu else "valid_loss"
        self.possible = VALIDATION in dataset.split_names and len(dataset.split(VALIDATION)) > 0
        if config.valid_bleu and not self.possible:
            raise UserError(f"--valid-bleu: {dataset.folder} has no split '{VALIDATION}': preprocess with --validpref")
        if self.possible:
            self.dataset, self.split = dataset, dataset.split(VALIDATION)
            source, target = self.split.source.lengths, self.split.target.lengths
            self.batches = cut(np.lexsort((source, target)), source, target, max_tokens, max_tokens)

    def better(self, value: float, than: float) -> bool:
        """Whether one value of the metric is better than another."""
        return value > than if self.config.valid_bleu else value < than

    @torch.inference_mode()
    def run(self, model: Transformer, device: torch.device) -> dict[str, float]:
        """The smoothed loss and the nll per target token, the perplexity, and BLEU if asked for."""
        model.eval()
        sums = torch.zeros(2, device=device)
        tokens = 0
        for indices in self.batches:
            batch = collate(self.split, indices).to(device)
            hidden = model.decode(batch.tgt_in, model.encode(batch.src))
            real = batch.tgt_out != PAD
            sums += torch.stack(
                projected_cross_entropy(hidden[real], model.output_matrix, batch.tgt_out[real], self.smoothing)
            )
            tokens += batch.target_tokens
        loss, nll = (sums / tokens).tolist()
        results = {"valid_loss": loss, "valid_nll": nll, "valid_ppl": perplexity(nll)}
        if self.config.valid_bleu:
            results["valid_bleu"] = self._bleu(model)
        return results

    def _bleu(self, model: Transformer) -> float:
        """BLEU of the translations of the split, against its targets as the tokenizer gives them back."""
        translator = Translator(model, self.dataset.source, self.dataset.target)
        sources = [self.split.source[i][:-1].tolist() for i in range(len(self.split))]
        references = [self.dataset.target.decode(self.split.target[i][:-1].tolist()) for i in range(len(self.split))]
        batches = StreamConfig(batch_tokens=self.max_tokens)
        search = SearchConfig(beam=self.config.valid_beam)
        hypotheses = [translation.text for translation in translator.stream_encoded(sources, search, batches)]
        if self.dataset.target.kind == SPACE:
            return tokenized_bleu(hypotheses, references).value
        return bleu(hypotheses, references, self.dataset.target_language).value
