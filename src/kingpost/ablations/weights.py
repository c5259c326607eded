"""Ablations that edit weights in place and put them back exactly.

An edit is a function of the values of one slice, float32, with the axis of the output features
second to last: [out, in] for a matrix however it lies in memory, [experts, out, in] for stacked
ones, [n] for a vector.
"""

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator

import torch
from torch import nn

from kingpost.ablations.ablation import Ablation, Setting, number
from kingpost.ablations.change import Change
from kingpost.ablations.rounding import round_to_nearest
from kingpost.models import Component, Model, Slice

Edit = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def weight_change(
    model: Model, component: Component, new_values: Callable[[Slice], torch.Tensor]
) -> Change:
    """A change that gives slices of parameters new values.

    Args:
        model: The model.
        component: Whose slices.
        new_values: The new values of a slice in the form of `slice_values`.
    """
    block = model.blocks[component.block]
    parameters = list({id(p): p for p in _parameters(block, component)}.values())

    @contextlib.contextmanager
    def edit() -> Iterator[None]:
        saved = [p.detach().clone() for p in parameters]
        try:
            with torch.no_grad():
                for s in component.slices:
                    _set_values(block.get_parameter(s.parameter), s, new_values(s))
            yield
        finally:
            with torch.no_grad():
                for parameter, values in zip(parameters, saved, strict=True):
                    parameter.copy_(values)

    return Change(touched=model.blocks_that_hold(parameters), edit=edit)


def slice_values(parameter: torch.Tensor, s: Slice) -> torch.Tensor:
    """The values of a slice, float32, with the axis of the output features second to last."""
    values = parameter.detach()
    if s.index is not None:
        values = values.index_select(s.axis, s.index.to(values.device))
    return _turned(values, s.axis).float()


def _set_values(parameter: nn.Parameter, s: Slice, values: torch.Tensor) -> None:
    values = _turned(values, s.axis, back=True).to(parameter)
    if s.index is None:
        parameter.copy_(values)
    else:
        parameter.index_copy_(s.axis, s.index.to(parameter.device), values)


def _turned(values: torch.Tensor, axis: int, *, back: bool = False) -> torch.Tensor:
    if values.ndim < 2:
        return values
    return values.movedim(-2, axis) if back else values.movedim(axis, -2)


def _parameters(block: nn.Module, component: Component) -> list[nn.Parameter]:
    return [block.get_parameter(s.parameter) for s in component.slices]


def zero() -> Ablation:
    """Weight and bias of exactly the component become zero, and with them its output."""
    return _weights(lambda values, _: torch.zeros_like(values), _no_whole_block("zero"))


def identity() -> Ablation:
    """A square matrix becomes the identity and its bias zero (W_Q = Id, arXiv 2510.23912)."""

    def edit(values: torch.Tensor, _: torch.Generator) -> torch.Tensor:
        return torch.eye(len(values)) if values.ndim == 2 else torch.zeros_like(values)

    return _weights(edit, _not_square)


def noise(sigma: str) -> Ablation:
    """W + σ·rms(w)·N(0, 1) for each tensor; the noise is seeded by site and does not repeat."""
    s = number(sigma, "noise", "give noise:σ, a multiple of the tensor's rms", low=1e-9, high=1e9)

    def edit(values: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        drawn = torch.randn(values.shape, generator=random).to(values.device)
        return values + s * values.square().mean().sqrt() * drawn

    return _weights(edit)


def quantize(bits: str, group: str = "128") -> Ablation:
    """Matrices are rounded to the nearest of 2^bits − 1 levels; vectors stay as they are."""
    b = int(number(bits, "quantize", "give quantize:bits", low=2, high=16))
    g = int(number(group, "quantize", "give quantize:bits:group", low=1, high=2**31))

    def edit(values: torch.Tensor, _: torch.Generator) -> torch.Tensor:
        return round_to_nearest(values, bits=b, group=g) if values.ndim >= 2 else values

    return _weights(edit, _no_matrix)


def shrink(fraction: str) -> Ablation:
    """w·(1 − f)."""
    f = number(fraction, "shrink", "give shrink:f, the share that is taken away", low=0, high=1)
    return _weights(lambda values, _: values * (1 - f))


def norm_weight(gain: float) -> Ablation:
    """The weight of a normalisation becomes such that it multiplies by `gain`."""
    name = "zero" if gain == 0 else "ones"

    def refusal(model: Model, component: Component) -> str:
        if not component.is_norm_weight:
            return f"{name} of norms needs the weight of a normalisation, not {component.name}."
        if _offset(model, component) is None:
            return (
                f"{name} is not defined on {component.name}, since it does not work on a hidden "
                "state alone; use noise or shrink."
            )
        return ""

    def change(model: Model, component: Component, _: Setting) -> Change:
        weight = model.blocks[component.block].get_parameter(component.slices[0].parameter)
        value = gain - (_offset(model, component) or 0)
        new_values = torch.full_like(slice_values(weight, component.slices[0]), value)
        return weight_change(model, component, lambda _: new_values)

    return Ablation(refusal, change)


@torch.no_grad()
def _offset(model: Model, component: Component) -> int | None:
    """What a normalisation adds to its weight before it multiplies: 1 in Gemma, mostly 0.

    None where it cannot be called to find out, with a hidden state or that and a gate.
    """
    path, _, attribute = component.slices[0].parameter.rpartition(".")
    norm = model.blocks[component.block].get_submodule(path)
    weight = getattr(norm, attribute)
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn((2, *weight.shape), generator=random).to(weight)
    saved = weight.detach().clone()
    for arguments in ((hidden,), (hidden, torch.ones_like(hidden))):
        try:
            weight.fill_(0.0)
            low = norm(*arguments).float()
            weight.fill_(1.0)
            high = norm(*arguments).float()
        except Exception:  # of any kind: the module was made for other arguments
            continue
        finally:
            weight.copy_(saved)
        # Differences of two rows, in which a bias cancels.
        low, high = (low[0] - low[1]).flatten(), (high[0] - high[1]).flatten()
        share = float(low @ high / (high @ high))  # c / (c + 1)
        return round(share / (1 - share)) if share < 1 else None
    return None


def _weights(edit: Edit, refusal: Callable[[Model, Component], str] = lambda *_: "") -> Ablation:
    def change(model: Model, component: Component, setting: Setting) -> Change:
        block = model.blocks[component.block]

        def new_values(s: Slice) -> torch.Tensor:
            random = _generator(setting.seed, component, s)
            return edit(slice_values(block.get_parameter(s.parameter), s), random)

        return weight_change(model, component, new_values)

    return Ablation(refusal, change)


def _generator(seed: int, component: Component, s: Slice) -> torch.Generator:
    """Random numbers that depend on seed and site alone."""
    key = f"{seed} {component.block} {component.name} {s.parameter}"
    digest = hashlib.sha256(key.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _no_whole_block(name: str) -> Callable[[Model, Component], str]:
    def refusal(_: Model, component: Component) -> str:
        if component.kind != "block":
            return ""
        return f"{name} is not defined on a whole block, whose residual stream goes on: use skip."

    return refusal


def _not_square(model: Model, component: Component) -> str:
    shapes = _matrices(model, component)
    if len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][0] == shapes[0][1]:
        return ""
    found = " and ".join(" × ".join(map(str, shape)) for shape in shapes) or "a vector"
    return f"identity needs one square matrix, and {component.name} of a block is {found}."


def _no_matrix(model: Model, component: Component) -> str:
    if _matrices(model, component):
        return ""
    return f"quantize rounds matrices, and {component.name} is a vector."


def _matrices(model: Model, component: Component) -> list[tuple[int, ...]]:
    block = model.blocks[component.block]
    shapes = []
    for s in component.slices:
        shape = list(block.get_parameter(s.parameter).shape)
        if s.index is not None:
            shape[s.axis] = len(s.index)
        if len(shape) >= 2:
            out = shape.pop(s.axis)
            shapes.append((*shape[:-1], out, shape[-1]))
    return [shape for shape in shapes if math.prod(shape)]
