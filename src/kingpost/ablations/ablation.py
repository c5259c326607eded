"""An ablation: what it is called, where it makes sense, and the change that it makes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from kingpost.ablations.change import Change
from kingpost.errors import UsageError
from kingpost.models import Component, Model


@dataclass(frozen=True)
class Setting:
    """What an ablation may draw on besides the model.

    Attributes:
        seed: Seed of the study.
        replacement: For an ablation that replaces outputs by others, those: one tensor for each
            `Output` of the component, broadcastable to what the module returns.
    """

    seed: int = 0
    replacement: Sequence[torch.Tensor] = ()


@dataclass(frozen=True)
class Ablation:
    """One ablation with its arguments.

    Attributes:
        refusal: Says in one sentence why it makes no sense on a component; empty if it does.
        change: Binds it to a component for which there is no refusal.
        replaces_by: What it needs in `Setting.replacement`: the outputs' mean over the text, the
            outputs of another sequence, or nothing.
    """

    refusal: Callable[[Model, Component], str]
    change: Callable[[Model, Component, Setting], Change]
    replaces_by: Literal["", "mean", "another"] = ""


def number(text: str, name: str, what: str, *, low: float, high: float) -> float:
    """An argument of an ablation.

    Raises:
        UsageError: It is no number between the two.
    """
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise UsageError(f"{name}:{text} is not understood: {what}, {low:g} to {high:g}.")
    return value
