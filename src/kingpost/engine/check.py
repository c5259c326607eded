"""The self-check: the engine against the model's own plain forward pass, before every scan."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kingpost.ablations import Change, skip_block
from kingpost.engine.engine import Engine, hooked
from kingpost.engine.losses import cross_entropy, head_input
from kingpost.engine.replay import Tape, cut_of, plain_forward, record, replay
from kingpost.errors import KingpostError, UnsupportedModelError
from kingpost.models import Model, hidden_out

_SEQUENCES, _TOKENS = 2, 32
# What may go wrong inside a model that the engine does not understand.
_MISFITS = (
    UnsupportedModelError,
    LookupError,
    TypeError,
    ValueError,
    RuntimeError,
    AttributeError,
    AssertionError,
)


@dataclass(frozen=True)
class Plain:
    """The model's own forward pass over some ids.

    Attributes:
        ids: Token ids, int64 [B, T].
        logits: [B, T, V].
        hidden: What the output embedding was given; None if it was never called.
        tolerance: Largest difference of logits that rounding in the model's dtype explains.
    """

    ids: torch.Tensor
    logits: torch.Tensor
    hidden: torch.Tensor | None
    tolerance: float


@torch.no_grad()
def checked_engine(model: Model, ids: torch.Tensor) -> tuple[Engine, list[str]]:
    """The fastest engine that agrees with the model's own plain forward pass.

    Compared are the logits of replays at a few cuts, of three skips with forward hooks, and the
    losses, on the first tokens of a few sequences.

    Args:
        model: The model.
        ids: Token ids of the scan, int64 [N, T].

    Returns:
        The engine, and one sentence for each thing that did not agree and is done another way.

    Raises:
        KingpostError: The model's own loss is not finite.
    """
    plain = _run_plain(model, ids[:_SEQUENCES, :_TOKENS].to(model.device))
    notes = []
    slices = not (misfit := _head_misfit(model, plain))
    if misfit:
        notes.append(f"Losses are computed in slices of positions: {misfit}.")
    misfit = _replay_misfit(model, plain) or _loss_misfit(Engine(model, slices=slices), plain)
    if misfit:
        notes.append(f"Plain forward passes with hooks are used, which is slower: {misfit}.")
    return Engine(model, replays=not misfit, slices=slices and not misfit), notes


@torch.no_grad()
def why_not_finite(model: Model, ids: torch.Tensor) -> str:
    """One sentence that says where the first number that is not finite comes from."""
    for name, parameter in model.hf.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"its parameter {name} holds values that are not finite"
    _, tape = record(model, ids.to(model.device))
    block = _first_not_finite(tape)
    if block is None:
        return "every block's output is finite, so what follows the last block produces it"
    return f"block L{block} is the first whose output is not finite"


def _first_not_finite(tape: Tape) -> int | None:
    for block, output in zip(tape.blocks, tape.outputs, strict=True):
        if not bool(torch.isfinite(hidden_out(output)).all()):
            return block
    return None


def _run_plain(model: Model, ids: torch.Tensor) -> Plain:
    given: list[torch.Tensor] = []

    def keep(hidden: torch.Tensor) -> torch.Tensor:
        given.append(hidden)
        return hidden

    with head_input(model.head, keep):
        logits = plain_forward(model, ids).logits
    if not bool(torch.isfinite(cross_entropy(logits[:, :-1], ids[:, 1:])).all()):
        raise KingpostError(
            f"The loss of {model.name} is not finite before anything is taken away: "
            f"{why_not_finite(model, ids)}; a damaged checkpoint or --dtype is the likely cause."
        )
    # Rounding of the logits themselves, and of float32 sums over the hidden size and vocabulary.
    relative = 4 * torch.finfo(model.dtype).eps + 32 * torch.finfo(torch.float32).eps
    tolerance = relative * float(logits.abs().max())
    return Plain(ids, logits, given[-1] if given else None, tolerance)


def _head_misfit(model: Model, plain: Plain) -> str:
    """Why the logits are more than output embedding times hidden state; empty if they are not."""
    if plain.hidden is None:
        return "the output embedding is never called"
    if type(model.head) is not nn.Linear:
        return f"the output embedding is a {type(model.head).__name__}"
    product = nn.functional.linear(plain.hidden, model.head.weight, model.head.bias)
    return _difference("something follows the output embedding", product, plain.logits, plain)


def _replay_misfit(model: Model, plain: Plain) -> str:
    last = len(model.blocks) - 1
    changes = [skip_block(block) for block in sorted({0, last // 2, last})]
    try:
        expected = [_hooked_logits(model, plain.ids, change) for change in changes]
        output, tape = record(model, plain.ids)
        misfit = _difference("the recorded forward pass", output.logits, plain.logits, plain)
        # What blocks keep outside their arguments now belongs to other ids, and stays so while the
        # cuts only go down: a replay that would need it differs.
        plain_forward(model, plain.ids.flip(1))
        for cut in _cuts(len(tape.blocks)):
            replayed = replay(model, plain.ids, tape, cut=cut).logits
            misfit = misfit or _difference(
                f"the replay from block call {cut}", replayed, plain.logits, plain
            )
        for change, logits in zip(changes, expected, strict=True):
            misfit = misfit or _skip_misfit(model, plain, tape, change, logits)
    except _MISFITS as error:
        return f"the replay failed ({error})"
    return misfit


def _cuts(calls: int) -> list[int]:
    """Cuts to compare at, the late ones first; two in the middle, as blocks may work in pairs."""
    return sorted({0, calls // 2, min(calls // 2 + 1, calls), calls}, reverse=True)


def _hooked_logits(model: Model, ids: torch.Tensor, change: Change) -> torch.Tensor:
    with hooked(model, change):
        return plain_forward(model, ids).logits  # type: ignore[no-any-return]


def _skip_misfit(
    model: Model, plain: Plain, tape: Tape, change: Change, expected: torch.Tensor
) -> str:
    cut = cut_of(tape, change)
    replayed = replay(model, plain.ids, tape, cut=cut, skipped=change.skipped).logits
    return _difference(f"the replay without block {min(change.skipped)}", replayed, expected, plain)


def _loss_misfit(engine: Engine, plain: Plain) -> str:
    expected = cross_entropy(plain.logits[:, :-1], plain.ids[:, 1:]).cpu()
    try:
        losses = engine.token_losses(engine.record(plain.ids))
    except _MISFITS as error:
        return f"the losses in slices failed ({error})"
    return _difference("the loss", losses, expected, plain)


def _difference(what: str, found: Any, expected: torch.Tensor, plain: Plain) -> str:
    if found.shape != expected.shape:
        return f"{what} has the shape {list(found.shape)} instead of {list(expected.shape)}"
    # NaN in both is agreement: taking a block away may overflow a dtype in either way.
    worst = float((found.float() - expected.float()).nan_to_num(nan=0.0).abs().max())
    if torch.equal(found.isnan(), expected.isnan()) and worst <= plain.tolerance:
        return ""
    return f"{what} differs by {worst:.2g} from the model's own forward pass"
