"""What a study was measured on and with, so that scans which differ in it do not mix."""

from importlib.metadata import version
from typing import Any

import torch

from kingpost.models import Model
from kingpost.study import FORMAT
from kingpost.texts import Text


def provenance(model: Model, text: Text) -> dict[str, Any]:
    """What must be the same for two scans to belong to one study."""
    return {
        "format": FORMAT,
        "model": model.name,
        "model_source": model.source,
        "model_notes": list(model.notes),
        "weights_sha256": model.weights_hash,
        "tokenizer_sha256": model.tokenizer_hash,
        "n_parameters": model.n_parameters,
        "n_blocks": len(model.blocks),
        "text": text.source,
        "text_sha256": text.digest,
        "length": text.length,
        "seed": text.seed,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.target.type,
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }
