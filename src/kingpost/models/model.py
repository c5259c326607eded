"""A loaded language model and what was found in it."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from kingpost.models.component import Component
from kingpost.models.components import list_components, list_parameters, select, whole_blocks
from kingpost.models.devices import default_device
from kingpost.models.files import TensorFiles
from kingpost.models.structure import count_parameters, holders


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
        files: Where its tensors are read from, if they are not in memory.
    """

    hf: Any
    tokenizer: Any
    blocks: tuple[nn.Module, ...]
    blocks_path: str
    name: str
    source: str
    notes: tuple[str, ...] = ()
    files: TensorFiles | None = None

    @property
    def device(self) -> torch.device:
        """Where the input embedding is, and so where token ids go."""
        return self.embedding.weight.device  # type: ignore[return-value]

    @property
    def target(self) -> torch.device:
        """Where it computes; of a model without its weights, where it would."""
        return default_device() if self.device.type == "meta" else self.device

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
        """What every block consists of: sub-layers, projections by role, and the rest by name."""
        return list_components(self.blocks, self.hf.config)

    def parameters(self) -> list[Component]:
        """Every parameter of every block, by its own name."""
        return list_parameters(self.blocks, self.hf.config)

    def roles_of(self, parameter: Component) -> list[str]:
        """The roles that a parameter serves, wholly or in part."""
        return self._served.get((parameter.block, parameter.name), [])

    @cached_property
    def _served(self) -> dict[tuple[int, str], list[str]]:
        served: dict[tuple[int, str], list[str]] = {}
        for component in self.components():
            if component.kind == "role":
                for name in component.parameters:
                    served.setdefault((component.block, name), []).append(component.name)
        return served

    def everything(self) -> list[Component]:
        """All that a site can be: whole blocks, components, and parameters by their own names.

        A parameter that has no role is there twice, and is the same both times.
        """
        return [*whole_blocks(self.blocks), *self.components(), *self.parameters()]

    def select(self, where: Sequence[str]) -> list[Component]:
        """The components that names ask for, each once, by block.

        Args:
            where: `blocks`, `components`, `parameters`, `norms`, a role such as `q_proj` or `mlp`,
                or a glob pattern on names of parameters inside a block, such as `mlp.*`.

        Raises:
            UsageError: A name matches nothing; the message lists the nearest ones.
        """
        return select(self.blocks, self.hf.config, where)

    def name_of(self, block: int, parameter: str) -> str:
        """The name in the whole model of a parameter that is named inside its block."""
        return f"{self.blocks_path}.{block}.{parameter}"

    def read(self, name: str) -> torch.Tensor:
        """A parameter or buffer by its name; from the files, if it is not in memory."""
        tensor: torch.Tensor = self._tensors[name]
        if self.files is None or not tensor.is_meta:
            return tensor.detach()
        return self.files.read(name).to(tensor.dtype)

    @cached_property
    def _tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and those buffers that a checkpoint has, by every name that they have."""
        return self.hf.state_dict(keep_vars=True)  # type: ignore[no-any-return]

    def blocks_that_hold(
        self, parts: Sequence[nn.Module] | Sequence[nn.Parameter]
    ) -> frozenset[int]:
        """The blocks that hold any of some parameters or modules.

        Empty if something outside the stack holds one too, as then no block comes first.
        """
        held = [self._holders.get(id(part), frozenset()) for part in parts]
        if any(id(part) in self._outside for part in parts):
            return frozenset()
        return frozenset[int]().union(*held)

    @cached_property
    def _holders(self) -> dict[int, frozenset[int]]:
        return holders(self.blocks)

    @cached_property
    def _outside(self) -> set[int]:
        parameters = self.hf.named_parameters(remove_duplicate=False)
        inside = self.blocks_path + "."
        return {id(p) for name, p in parameters if not name.startswith(inside)}

    @cached_property
    def weights_hash(self) -> str:
        """SHA-256 over name, shape, dtype and bytes of every parameter and saved buffer, in order.

        A tied or shared parameter counts once. Read before the first forward pass: some models
        (RWKV) rescale their weights in it.
        """
        once = {id(tensor): name for name, tensor in reversed(self._tensors.items())}
        names = sorted(once.values())
        with ThreadPoolExecutor() as pool:  # hashlib lets go of the interpreter lock
            digests = pool.map(lambda name: _tensor_digest(name, self.read(name)), names)
            return hashlib.sha256(b"".join(digests)).hexdigest()

    @cached_property
    def tokenizer_hash(self) -> str:
        """SHA-256 over the vocabulary and the special tokens."""
        if self.tokenizer is None:
            return ""
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        special = sorted((k, str(v)) for k, v in self.tokenizer.special_tokens_map.items())
        return hashlib.sha256(repr((vocabulary, special)).encode()).hexdigest()


def _tensor_digest(name: str, tensor: torch.Tensor) -> bytes:
    digest = hashlib.sha256(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest.update(raw.numpy().data)
    return digest.digest()
