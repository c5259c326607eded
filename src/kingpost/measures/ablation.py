"""ablation: the exact ΔLoss, to which every other measure is compared."""

import numpy as np
import numpy.typing as npt
import torch


def mean_loss(losses: torch.Tensor) -> npt.NDArray[np.float64]:
    """Mean loss of each sequence.

    Args:
        losses: Token losses, float32 [B, T - 1], nats.

    Returns:
        float64 [B], nats per token.
    """
    return losses.double().mean(dim=1).numpy()


def delta_loss(ablated: torch.Tensor, baseline: torch.Tensor) -> npt.NDArray[np.float64]:
    """ΔLoss of each sequence: with the ablation minus without, both run the same way.

    Args:
        ablated: Token losses with the ablation, float32 [B, T - 1], nats.
        baseline: Token losses of the same sequences without it.

    Returns:
        float64 [B], nats per token; positive where the model got worse.
    """
    return mean_loss(ablated) - mean_loss(baseline)
