"""What modules return in a plain forward pass, for the ablations that put it elsewhere."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from kingpost.engine.replay import plain_forward
from kingpost.models import Component, Model, hidden_out

# position of the component, position of the output in it, what was returned [..., features]
OnOutput = Callable[[int, int, torch.Tensor], None]


@torch.no_grad()
def outputs_of(
    model: Model, ids: torch.Tensor, components: Sequence[Component]
) -> list[list[torch.Tensor]]:
    """What components return for ids [B, T]: for each a tensor [B, T, features] for each output.

    A module that is called more than once counts with its first call; one that is never called
    gives an empty tensor.
    """
    found = [[torch.empty(0) for _ in c.outputs] for c in components]

    def keep(component: int, position: int, output: torch.Tensor) -> None:
        if not found[component][position].numel():
            found[component][position] = output.clone()

    with _watched_outputs(model, components, keep):
        plain_forward(model, ids)
    return found


@torch.no_grad()
def mean_outputs(
    model: Model, batches: Iterable[torch.Tensor], components: Sequence[Component]
) -> list[list[torch.Tensor]]:
    """The mean of what components return over all tokens that predict a scored one.

    Args:
        model: The model.
        batches: Token ids, int64 [B, T] each.
        components: Which.

    Returns:
        For each component one float64 tensor [features] for each of its outputs; empty for a
        module that is never called.
    """
    sums = [[torch.zeros(0, dtype=torch.float64) for _ in c.outputs] for c in components]
    counts = [[0 for _ in c.outputs] for c in components]

    def add(component: int, position: int, output: torch.Tensor) -> None:
        # The last position of a sequence predicts nothing that is scored.
        rows = output[..., :-1, :].flatten(0, -2).double()
        total = sums[component][position]
        sums[component][position] = rows.sum(0) + (total if total.numel() else 0)
        counts[component][position] += len(rows)

    with _watched_outputs(model, components, add):
        for ids in batches:
            plain_forward(model, ids.to(model.device))
    return [
        [total / max(n, 1) for total, n in zip(*pair, strict=True)]
        for pair in zip(sums, counts, strict=True)
    ]


@contextmanager
def _watched_outputs(
    model: Model, components: Sequence[Component], on_output: OnOutput
) -> Iterator[None]:
    def hook(component: int, position: int, index: torch.Tensor | None) -> Callable[..., None]:
        def after(_: nn.Module, __: Any, output: Any) -> None:
            hidden = hidden_out(output)
            part = hidden if index is None else hidden[..., index.to(hidden.device)]
            on_output(component, position, part)

        return after

    with ExitStack() as stack:
        for i, component in enumerate(components):
            for j, output in enumerate(component.outputs):
                module = model.blocks[component.block].get_submodule(output.module)
                handle = module.register_forward_hook(hook(i, j, output.index))
                stack.callback(handle.remove)
        yield
