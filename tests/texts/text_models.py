"""Tiny real tokenizers, and a model that is only what a text needs of one."""

from dataclasses import dataclass
from typing import Any

import tokenizers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "the quick brown fox jumps over the lazy dog\n\n",
    "a king post carries the load of a roof",
]


@dataclass
class FakeModel:
    tokenizer: Any
    vocabulary_size: int
    max_length: int | None = 4096


def byte_level(*, bos: bool = False, eos: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE: decoding gives every text back exactly."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS * 3, trainer)
    if bos or eos:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{'<s>' if bos else ''} $A {'</s>' if eos else ''}".strip(),
            special_tokens=[("<s>", 0), ("</s>", 1)],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", model_max_length=64
    )


def model_of(tokenizer: PreTrainedTokenizerFast, max_length: int | None = 4096) -> FakeModel:
    return FakeModel(tokenizer, len(tokenizer), max_length)
