"""Every ablation by name, and the choice of the right one for a component."""

from collections.abc import Callable
from typing import Any

from kingpost.ablations.ablation import Ablation
from kingpost.ablations.blocks import skip
from kingpost.ablations.outputs import mean, resample, zero_outputs
from kingpost.ablations.pin import pin
from kingpost.ablations.weights import identity, noise, norm_weight, quantize, shrink, zero
from kingpost.errors import UsageError
from kingpost.models import Component

ABLATIONS: dict[str, Callable[..., Ablation]] = {
    "skip": skip,
    "zero": zero,
    "mean": mean,
    "resample": resample,
    "identity": identity,
    "noise": noise,
    "quantize": quantize,
    "shrink": shrink,
    "pin": pin,
    "ones": lambda: norm_weight(1.0),
}
# How an ablation with arguments is written.
_FORMS = {
    "noise": "noise:σ",
    "quantize": "quantize:bits[:group]",
    "shrink": "shrink:fraction",
    "pin": "pin:0 or pin:1",
}


def ablation_for(name: str, component: Component) -> tuple[str, Ablation]:
    """The ablation that a name means for a component, and what it is called there.

    Args:
        name: A name of `ABLATIONS`, with its arguments after colons, or `auto`: taking the
            component away, which is `skip` for a block and `zero` for a part of one.
        component: The component.

    Raises:
        UsageError: There is no such ablation, or its arguments are wrong.
    """
    if name == "auto":
        name = "skip" if component.kind == "block" else "zero"
    if name == "zero" and component.kind == "sublayer" and component.outputs:
        return name, zero_outputs()
    if name == "zero" and component.is_norm_weight:
        return name, norm_weight(0.0)
    return name, _parse(name)


def _parse(name: str) -> Ablation:
    kind, *arguments = name.split(":")
    if kind not in ABLATIONS:
        known = ", ".join(_FORMS.get(known, known) for known in ABLATIONS)
        raise UsageError(f"Unknown ablation {name!r}: there is {known}.")
    make: Any = ABLATIONS[kind]
    try:
        return make(*arguments)  # type: ignore[no-any-return]
    except TypeError:
        form = _FORMS.get(kind, kind)
        raise UsageError(f"Ablation {name!r} is not understood: write {form}.") from None
