"""pin: the decay or the write strength of a gated delta layer becomes a constant.

alpha = exp(−exp(A_log)·softplus(a + dt_bias)) and beta = sigmoid(b), doubled where negative
eigenvalues are allowed (arXiv 2412.06464, arXiv 2411.12537). Zeroing the matrix of alpha leaves a
constant decay between 0 and 1, zeroing that of beta leaves a half of its range; pinning is another
ablation.
"""

import torch

from kingpost.ablations.ablation import Ablation, Setting
from kingpost.ablations.change import Change
from kingpost.ablations.outputs import output_change
from kingpost.ablations.weights import slice_values, weight_change
from kingpost.errors import UsageError
from kingpost.models import Component, Model, Slice

# Far enough for softplus and sigmoid to be constant in every dtype, near enough to stay finite.
_FAR = 1e4


def pin(value: str) -> Ablation:
    """Alpha (1: nothing is forgotten, 0: nothing is kept) or beta (1: written whole, 0: not)."""
    if value not in ("0", "1"):
        raise UsageError(f"pin:{value} is not understood: give pin:0 or pin:1.")

    def change(model: Model, component: Component, _: Setting) -> Change:
        if component.name == "alpha":
            return _pin_alpha(model, component, value == "1")
        return _pin_beta(model, component, value == "1")

    return Ablation(_refusal, change)


def _refusal(model: Model, component: Component) -> str:
    if component.kind != "role" or component.name not in ("alpha", "beta"):
        return f"pin is defined on alpha and beta of gated delta layers, not on {component.name}."
    if component.name == "alpha" and len(_decay(model, component)) != 2:
        return "pin needs A_log and dt_bias beside the matrix of alpha, and they are not there."
    if component.name == "beta" and not component.outputs:
        return "pin needs a module that returns beta by itself."
    return ""


def _pin_alpha(model: Model, component: Component, kept: bool) -> Change:
    # softplus(dt_bias) is 0 or _FAR once the matrix is zero, and exp(A_log) is 1.
    bias = -_FAR if kept else _FAR
    decay = _decay(model, component)
    pinned = Component(component.block, component.name, "role", (*component.slices, *decay), (), 0)
    block = model.blocks[component.block]

    def new_values(s: Slice) -> torch.Tensor:
        values = slice_values(block.get_parameter(s.parameter), s)
        return torch.full_like(values, bias if s.parameter.endswith("dt_bias") else 0.0)

    return weight_change(model, pinned, new_values)


def _decay(model: Model, component: Component) -> list[Slice]:
    """A_log and dt_bias of the layer that the matrix of alpha belongs to."""
    names = [n for n, _ in model.blocks[component.block].named_parameters()]
    top = component.slices[0].parameter.partition(".")[0] + "."
    ends = ("A_log", "dt_bias")
    return [Slice(n) for n in names if n.startswith(top) and n.rpartition(".")[2] in ends]


def _pin_beta(model: Model, component: Component, written: bool) -> Change:
    module = component.outputs[0].module.partition(".")[0]
    layer = model.blocks[component.block].get_submodule(module)
    doubled = bool(getattr(layer, "allow_neg_eigval", False))
    logit = -_FAR if not written else 0.0 if doubled else _FAR
    return output_change(model, component, [torch.tensor(logit)] * len(component.outputs))
