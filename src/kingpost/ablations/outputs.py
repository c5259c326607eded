"""Ablations that replace what modules return, by forward hooks."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import nn

from kingpost.ablations.ablation import Ablation, Setting
from kingpost.ablations.change import Change
from kingpost.errors import UnsupportedModelError
from kingpost.models import Component, Model, hidden_out, with_hidden


def output_change(
    model: Model, component: Component, replacements: Sequence[torch.Tensor]
) -> Change:
    """A change that replaces the outputs of a component.

    Args:
        model: The model.
        component: Which.
        replacements: For each of its outputs what to put there, broadcastable to [..., features].
    """
    block = model.blocks[component.block]
    modules = [block.get_submodule(o.module) for o in component.outputs]

    @contextlib.contextmanager
    def edit() -> Iterator[None]:
        fired: set[int] = set()

        def hook(position: int) -> Callable[..., Any]:
            index, new = component.outputs[position].index, replacements[position]

            def after(_: nn.Module, __: Any, output: Any) -> Any:
                fired.add(position)
                hidden = hidden_out(output)
                if index is None:
                    # A copy of its own: some models go on to add to it in place.
                    return with_hidden(output, new.to(hidden).expand_as(hidden).clone())
                edited = hidden.clone()
                edited[..., index.to(hidden.device)] = new.to(hidden)
                return with_hidden(output, edited)

            return after

        with ExitStack() as stack:
            for position, module in enumerate(modules):
                stack.callback(module.register_forward_hook(hook(position)).remove)
            yield
        if len(fired) < len(modules):
            missing = next(o for i, o in enumerate(component.outputs) if i not in fired)
            raise UnsupportedModelError(
                f"{missing.module} of L{component.block} was never called, so nothing can be said "
                f"about {component.name} there: leave it out of --where."
            )

    return Change(touched=model.blocks_that_hold(modules), edit=edit)


def zero_outputs() -> Ablation:
    """What a sub-layer adds to the residual stream becomes zero."""

    def change(model: Model, component: Component, _: Setting) -> Change:
        zeros = [torch.zeros(()) for _ in component.outputs]
        return output_change(model, component, zeros)

    return Ablation(_no_output("zero"), change)


def mean() -> Ablation:
    """The output becomes its mean over the scored text, feature by feature."""
    return _replaced("mean", "mean")


def resample() -> Ablation:
    """The output is taken from another sequence at the same position."""
    return _replaced("resample", "another")


def _replaced(name: str, by: Literal["mean", "another"]) -> Ablation:
    def change(model: Model, component: Component, setting: Setting) -> Change:
        return output_change(model, component, setting.replacement)

    return Ablation(_no_output(name), change, replaces_by=by)


def _no_output(name: str) -> Callable[[Model, Component], str]:
    def refusal(_: Model, component: Component) -> str:
        if component.outputs:
            return ""
        return (
            f"{name} replaces what a module returns, and no module returns {component.name} by "
            "itself: use an ablation of weights, such as zero or noise:1 on its parameters."
        )

    return refusal
