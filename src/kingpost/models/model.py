"""A loaded language model and what was found in it."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from kingpost.models.structure import Component, count_parameters, list_components


@dataclass(frozen=True, eq=False)
class Model:
    """A causal language model of transformers, its tokenizer, and its stack of blocks.

    Attributes:
        hf: The transformers model itself, in evaluation mode.
        tokenizer: Its tokenizer; None only for a model that was handed over without one.
        blocks: The decoder layers, counted from 0.
        blocks_path: Where the stack is inside `hf`, such as `model.layers`.
        name: What figures call it.
        source: What to give `load_model` to get it again; empty for a model handed over in memory.
        notes: What a reader of the numbers must know, such as where the weights came from.
    """

    hf: Any
    tokenizer: Any
    blocks: tuple[nn.Module, ...]
    blocks_path: str
    name: str
    source: str
    notes: tuple[str, ...] = ()

    @property
    def device(self) -> torch.device:
        """Where the input embedding is, and so where token ids go."""
        return self.embedding.weight.device  # type: ignore[return-value]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.hf.dtype  # type: ignore[no-any-return]

    @property
    def embedding(self) -> nn.Module:
        """The input embedding."""
        return self.hf.get_input_embeddings()  # type: ignore[no-any-return]

    @property
    def head(self) -> nn.Module:
        """The output embedding."""
        return self.hf.get_output_embeddings()  # type: ignore[no-any-return]

    @property
    def vocabulary_size(self) -> int:
        """Rows of the input embedding."""
        return int(self.embedding.weight.shape[0])  # type: ignore[index]

    @property
    def max_length(self) -> int | None:
        """Longest sequence in tokens that the configuration allows; None where it says nothing."""
        for key in (
            "max_position_embeddings",
            "n_positions",
            "max_seq_len",
            "max_target_positions",
        ):
            value = getattr(self.hf.config, key, None)
            if isinstance(value, int) and value > 0:
                return value
        return None

    @property
    def tied_head(self) -> bool:
        """Whether the output embedding is the input embedding."""
        return getattr(self.head, "weight", None) is self.embedding.weight

    @property
    def n_parameters(self) -> int:
        """Number of parameters; tied and shared ones count once."""
        return count_parameters(self.hf)

    def components(self) -> list[Component]:
        """Every parameter of every block."""
        return list_components(self.blocks)

    @cached_property
    def weights_hash(self) -> str:
        """SHA-256 over name, shape, dtype and bytes of every parameter and buffer, in order.

        Read before the first forward pass: some models (RWKV) rescale their weights in it.
        """
        with ThreadPoolExecutor() as pool:  # hashlib lets go of the interpreter lock
            digests = pool.map(lambda item: _tensor_digest(*item), self._named_tensors())
            return hashlib.sha256(b"".join(digests)).hexdigest()

    @cached_property
    def tokenizer_hash(self) -> str:
        """SHA-256 over the vocabulary and the special tokens."""
        if self.tokenizer is None:
            return ""
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        special = sorted((k, str(v)) for k, v in self.tokenizer.special_tokens_map.items())
        return hashlib.sha256(repr((vocabulary, special)).encode()).hexdigest()

    def _named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.hf.named_parameters()
        yield from self.hf.named_buffers()


def _tensor_digest(name: str, tensor: torch.Tensor) -> bytes:
    digest = hashlib.sha256(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest.update(raw.numpy().data)
    return digest.digest()
