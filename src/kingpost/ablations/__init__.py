"""Ablations: what can be done to a site."""

from kingpost.ablations.change import Change as Change
from kingpost.ablations.skip import skip as skip
from kingpost.errors import UsageError
from kingpost.models import Model

ABLATIONS = {"skip": skip}


def make_change(model: Model, block: int, *, ablation: str) -> Change:
    """What `ablation` does to a forward pass when it is applied to a block.

    Raises:
        UsageError: There is no ablation of that name, or no such block.
    """
    if ablation not in ABLATIONS:
        raise UsageError(f"Unknown ablation {ablation!r}: there is {', '.join(ABLATIONS)}.")
    if not 0 <= block < len(model.blocks):
        raise UsageError(f"There is no block {block}: {model.name} has 0..{len(model.blocks) - 1}.")
    return ABLATIONS[ablation](block)
