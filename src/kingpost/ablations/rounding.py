"""Round-to-nearest quantisation of a matrix."""

import torch


def round_to_nearest(values: torch.Tensor, *, bits: int, group: int) -> torch.Tensor:
    """Round to the levels of a symmetric grid, as the simplest weight quantisers do.

    Each group of `group` neighbours along the last (input) axis has its own scale
    s = max|w| / (2^(bits−1) − 1); a value becomes s · round(w/s). A last group may be shorter.

    Args:
        values: float32 [..., in].
        bits: Bits of a level, 2 or more.
        group: Values that share a scale.

    Returns:
        float32, the shape of `values`.
    """
    n = values.shape[-1]
    size = min(group, n)
    padded = torch.nn.functional.pad(values, (0, -n % size))
    groups = padded.unflatten(-1, (-1, size))
    scale = groups.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    # A group of zeros stays what it is.
    levels = (groups / scale.where(scale > 0, 1.0)).round()
    rounded: torch.Tensor = (levels * scale).flatten(-2)[..., :n]
    return rounded
