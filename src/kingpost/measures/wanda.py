"""wanda: Σ_ij |W_ij|·‖x_j‖₂ with x_j the inputs of one sequence (Sun et al. 2023, 2306.11695)."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from kingpost.ablations import slice_values
from kingpost.models import Component, Model, Slice


class InputNorms:
    """Collects, during one forward pass, how large the inputs of linear layers are.

    The norm of an input feature is over the tokens of one sequence that predict a scored one.

    Args:
        model: The model.
        components: Which; wanda is defined for those that consist of weights of linear layers.
        n_sequences: Sequences of the batch, B.
        length: Tokens of a sequence, T.
    """

    def __init__(
        self, model: Model, components: Sequence[Component], *, n_sequences: int, length: int
    ) -> None:
        self._model, self._components = model, components
        self._shape = (n_sequences, length)
        self._squares: dict[int, torch.Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the context forward passes are watched."""
        modules = {id(m): m for c in self._components for _, m in self._linear(c)}
        with ExitStack() as stack:
            for module in modules.values():
                stack.callback(module.register_forward_pre_hook(self._take).remove)
            yield

    @torch.no_grad()
    def _take(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not args:
            return
        hidden, (n_sequences, length) = args[0], self._shape
        if hidden.numel() != n_sequences * length * hidden.shape[-1]:
            return  # the layer sees some of the tokens only: whose they are is not known
        rows = hidden.reshape(n_sequences, length, -1)[:, :-1].float()
        squares = rows.square().sum(1).double()
        self._squares[id(module)] = squares + self._squares.get(id(module), 0)

    @torch.no_grad()
    def values(self) -> npt.NDArray[np.float64]:
        """Wanda of each component, float64 [components, B]; NaN where it is not defined."""
        return np.stack([self._value(c) for c in self._components])

    def _value(self, component: Component) -> npt.NDArray[np.float64]:
        total = torch.zeros(self._shape[0], dtype=torch.float64, device=self._model.device)
        linear = self._linear(component)
        if not linear or any(id(m) not in self._squares for _, m in linear):
            return np.full(self._shape[0], np.nan)
        block = self._model.blocks[component.block]
        for s, module in linear:
            columns = slice_values(block.get_parameter(s.parameter), s).abs().sum(0).double()
            total += self._squares[id(module)].sqrt() @ columns
        return total.cpu().numpy()

    def _linear(self, component: Component) -> list[tuple[Slice, nn.Module]]:
        """The component's matrices with the linear layers that own them; empty if any has none."""
        block = self._model.blocks[component.block]
        found = []
        for s in component.slices:
            path, _, attribute = s.parameter.rpartition(".")
            owner = block.get_submodule(path)
            is_linear = isinstance(owner, nn.Linear) or type(owner).__name__ == "Conv1D"
            if is_linear and attribute == "weight":
                found.append((s, owner))
            elif block.get_parameter(s.parameter).ndim > 1:
                return []
        return found
