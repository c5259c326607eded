"""One forward and one backward pass over a sequence, with every gradient let go once it is used."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from kingpost.engine.losses import cross_entropy
from kingpost.engine.replay import OnBlock, plain_forward, watch_blocks
from kingpost.models import Model

# A parameter and the gradient of the loss with respect to it.
OnGradient = Callable[[nn.Parameter, torch.Tensor], None]


def backward(
    model: Model,
    ids: torch.Tensor,
    parameters: Sequence[nn.Parameter],
    on_gradient: OnGradient,
    *,
    on_block: OnBlock | None = None,
) -> float:
    """Take the gradients of the mean next-token loss of one sequence, one after the other.

    No more than the gradients that autograd holds at one moment are in memory beside weights and
    activations: each is given to `on_gradient` as soon as it is complete and freed after it.

    Args:
        model: The model; its weights stay as they are, and so does what requires a gradient.
        ids: Token ids of one sequence, int64 [1, T].
        parameters: With respect to what.
        on_gradient: Called once for each parameter that the loss depends on; a shared parameter's
            gradient is complete by then. It may change the gradient, not the parameter.
        on_block: Called with the input and output hidden states of each block call.

    Returns:
        The mean loss, nats per token.
    """
    with _requiring_gradients(model, parameters, on_gradient), torch.enable_grad():
        with watch_blocks(model, on_block):
            logits = plain_forward(model, ids).logits
        losses = cross_entropy(logits[:, :-1], ids[:, 1:])
        del logits
        if losses.requires_grad:  # else it depends on none of the parameters
            losses.mean().backward()
    return float(losses.detach().double().mean())


@contextmanager
def _requiring_gradients(
    model: Model, parameters: Sequence[nn.Parameter], on_gradient: OnGradient
) -> Iterator[None]:
    """Within the context exactly these parameters require gradients, which are given away."""

    def give(parameter: torch.Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        with torch.no_grad():
            on_gradient(parameter, gradient)

    wanted = {id(p): p for p in parameters}
    before = [(p, p.requires_grad, p.grad) for p in model.hf.parameters()]
    handles = []
    try:
        for parameter, _, _ in before:
            parameter.grad = None
            parameter.requires_grad_(id(parameter) in wanted)
        handles = [p.register_post_accumulate_grad_hook(give) for p in wanted.values()]
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter, required, gradient in before:
            parameter.requires_grad_(required)
            parameter.grad = gradient
