"""A component: a part of a block with a name, and where its weights and its outputs are."""

import fnmatch
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

# block: all of it; sublayer: several tensors with one purpose (attn, mlp, experts); role: weight
# and bias of one projection, or a slice of a fused one (q_proj); parameter: one, by its own name.
Kind = Literal["block", "sublayer", "role", "parameter"]

# How the name of a normalisation ends: input_layernorm, q_norm, ln_1, norm1, LayerNorm ...
_NORMS = ("*norm", "*norm[0-9]", "*ln_[0-9a-z]*", "*ln[0-9]", "*.ln")


@dataclass(frozen=True, eq=False)
class Slice:
    """A part of one parameter of a block.

    Attributes:
        parameter: The parameter's full name inside the block, such as `attn.c_attn.weight`.
        axis: The axis of its output features: 0 in a `Linear`, 1 in a `Conv1D`, 1 or 2 in experts
            stacked in front.
        index: int64 [n], the positions along the axis in the order of the outputs; None for all.
    """

    parameter: str
    axis: int = 0
    index: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Output:
    """A part of what a module of a block returns.

    Attributes:
        module: The module's path inside the block; what it returns, or element 0 of that, is meant.
        index: int64 [n], positions along the last axis; None for all.
    """

    module: str
    index: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Component:
    """A part of one block.

    Attributes:
        block: Index of the block, from 0.
        name: A role, such as `q_proj` or `mlp`, or the name of a parameter inside the block without
            `.weight`, such as `input_layernorm`; `block` for all of it.
        kind: What sort of part it is.
        slices: The weights that it consists of.
        outputs: Where what it computes can be replaced; empty where no module returns it.
        n_parameters: Number of elements of its weights.
    """

    block: int
    name: str
    kind: Kind
    slices: tuple[Slice, ...]
    outputs: tuple[Output, ...]
    n_parameters: int

    @property
    def is_norm(self) -> bool:
        """Whether it is a parameter of a normalisation, judged by its name."""
        name = self.name.removesuffix(".bias").lower()
        return self.kind == "parameter" and any(fnmatch.fnmatchcase(name, n) for n in _NORMS)

    @property
    def is_norm_weight(self) -> bool:
        """Whether it is what a normalisation multiplies by."""
        return self.is_norm and not self.name.endswith(".bias")

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters it is made of, wholly or in part, by name without `.weight`."""
        return tuple(dict.fromkeys(short_name(s.parameter) for s in self.slices))


def short_name(parameter: str) -> str:
    """The name of a parameter as it is printed: without `.weight`."""
    return parameter.removesuffix(".weight")


def count_elements(block: nn.Module, slices: tuple[Slice, ...]) -> int:
    """Number of elements of slices of a block's parameters."""
    total = 0
    for s in slices:
        parameter = block.get_parameter(s.parameter)
        n = parameter.numel()
        total += n if s.index is None else n // parameter.shape[s.axis] * len(s.index)
    return total
