"""What the engine is compared with: plain forward passes and forward hooks, written on their own.

Nothing here comes from Kingpost: two programs that share code can share a mistake.
"""

import inspect
from typing import Any

import torch
from torch import nn


@torch.no_grad()
def logits_of(hf: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits of a plain forward pass, [B, T, V]."""
    return hf(input_ids=ids, use_cache=False).logits


def logits_without(hf: Any, block: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """The logits when a block gives back its first argument in place of its hidden state."""

    def give_back(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        hidden = next(
            iter(inspect.signature(block.forward).bind(*args, **kwargs).arguments.values())
        )
        return hidden if torch.is_tensor(output) else type(output)([hidden, *output[1:]])

    handle = block.register_forward_hook(give_back, with_kwargs=True)
    try:
        return logits_of(hf, ids)
    finally:
        handle.remove()


def losses_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Next-token losses in nats from full logits, float64 [B, T - 1]."""
    log_probabilities = logits[:, :-1].double().log_softmax(-1)
    return -log_probabilities.gather(-1, ids[:, 1:, None]).squeeze(-1)


def head_is_last(hf: Any, ids: torch.Tensor) -> bool:
    """Whether the logits are the output embedding times what it was given, and nothing more."""
    given: list[torch.Tensor] = []
    head = hf.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _, args: given.append(args[0].clone()))
    try:
        logits = logits_of(hf, ids).double()
    finally:
        handle.remove()
    product = given[-1].double() @ head.weight.detach().double().T
    if head.bias is not None:
        product += head.bias.detach().double()
    return product.shape == logits.shape and torch.allclose(product, logits, atol=1e-4)


def tensors_of(hf: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all parameters and buffers by name."""
    named = [*hf.named_parameters(), *hf.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def same_tensors(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of named tensors are the same to the last bit."""
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


def traces_on(hf: nn.Module) -> list[str]:
    """What an engine may have left behind on a model: hooks and replaced forwards."""
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    return [
        f"{name}.{what}"
        for name, module in hf.named_modules()
        for what in (*hooks, "forward")
        if (module.__dict__.get(what) if what in hooks else what in module.__dict__)
    ]
