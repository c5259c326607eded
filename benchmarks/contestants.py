"""Three other ways to skip every block of a model, each written as its own users would write it.

The contestants of `peers.py`: a loop of PyTorch forward hooks, nnsight, and TransformerLens. Each
has a `prepare_*` function that loads the model (not timed) and returns a `Scan` (timed). All give
the mean next-token loss of the untouched model and of the model with one block skipped, in nats.

A contestant is best run in a process of its own: nnsight adds a method to `object` when it is
imported, and TransformerLens silences the logging of transformers and changes how it reads
configs.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name PyTorch's documentation uses
from torch import Tensor


class Scan(Protocol):
    """A prepared contestant."""

    def __call__(self, ids: Tensor, batch: int, blocks: Sequence[int] | None = None) -> np.ndarray:
        """Mean losses: the untouched model first, then one per skipped block.

        Args:
            ids: Token ids, [sequences, length].
            batch: Sequences per forward pass.
            blocks: The blocks to skip, one at a time; all of them when None.
        """
        ...


def prepare_hooks(path: str, dtype: torch.dtype) -> Scan:
    """Transformers, and a forward hook by which the block returns what it was given."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    layers = model.model.layers

    def return_input(_block: torch.nn.Module, args: tuple[Any, ...], _output: Any) -> Any:
        return args[0]

    def losses(ids: Tensor, skip: int | None) -> Tensor:
        handle = None if skip is None else layers[skip].register_forward_hook(return_input)
        try:
            return sequence_losses(model(input_ids=ids, use_cache=False).logits, ids)
        finally:
            if handle is not None:
                handle.remove()

    return _scan_of(losses, len(layers))


def prepare_nnsight(path: str, dtype: torch.dtype) -> Scan:
    """A trace of nnsight and its `skip`, which does not run the block at all."""
    from nnsight import TransformersModel

    # LanguageModel is the same class under a name that nnsight 0.8 deprecates.
    model = TransformersModel(path, task="text-generation", dtype=dtype, dispatch=True)
    model.eval()
    layers = model.model.layers

    def losses(ids: Tensor, skip: int | None) -> Tensor:
        with model.trace(input_ids=ids, use_cache=False):
            if skip is not None:
                layers[skip].skip(layers[skip].input)
            saved = sequence_losses(model.lm_head.output, ids).save()
        return saved  # noqa: RET504 - a trace cannot be returned from

    return _scan_of(losses, len(layers))


def prepare_transformer_lens(path: str, dtype: torch.dtype) -> Scan:
    """A TransformerBridge with raw weights; `hook_out` gets what `hook_in` saw.

    Compatibility mode would fold the norms into the weights, which changes bfloat16 numbers.
    `start_at_layer` would spare nothing: the bridge runs the earlier blocks and drops their output.
    """
    from transformer_lens.model_bridge import TransformerBridge

    bridge = TransformerBridge.boot_transformers(path, device="cpu", dtype=dtype)
    bridge.eval()

    def losses(ids: Tensor, skip: int | None) -> Tensor:
        hooks = [] if skip is None else _bridge_skip(skip)
        return sequence_losses(bridge.run_with_hooks(ids, fwd_hooks=hooks, use_cache=False), ids)

    return _scan_of(losses, len(bridge.blocks))


PREPARE: dict[str, Callable[[str, torch.dtype], Scan]] = {
    "hooks": prepare_hooks,
    "nnsight": prepare_nnsight,
    "transformer_lens": prepare_transformer_lens,
}


def sequence_losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean next-token loss of each sequence, in float32."""
    predicted = logits[:, :-1].float().flatten(0, 1)
    losses = F.cross_entropy(predicted, ids[:, 1:].flatten(), reduction="none")
    return losses.view(len(ids), -1).mean(dim=1)


def _bridge_skip(block: int) -> list[tuple[str, Callable[..., Tensor]]]:
    entered: list[Tensor] = []

    def keep(resid: Tensor, hook: Any) -> Tensor:
        entered.append(resid)
        return resid

    def put_back(_resid: Tensor, hook: Any) -> Tensor:
        return entered.pop()

    return [(f"blocks.{block}.hook_in", keep), (f"blocks.{block}.hook_out", put_back)]


def _scan_of(losses: Callable[[Tensor, int | None], Tensor], n_blocks: int) -> Scan:
    """The loop that all contestants share: every variant, in batches of sequences."""

    @torch.inference_mode()
    def scan(ids: Tensor, batch: int, blocks: Sequence[int] | None = None) -> np.ndarray:
        variants = [None, *(range(n_blocks) if blocks is None else blocks)]
        means = [
            torch.cat([losses(rows, skip) for rows in ids.split(batch)]).double().mean().item()
            for skip in variants
        ]
        return np.array(means)

    return scan
