"""The sizes of the reference family: gated delta rule and full attention, three to one.

The recipe is transformers' own `OlmoHybridForCausalLM`, whose gated delta layers have separate
projections for the query, the decay (`a_proj`, α) and the write gate (`b_proj`, β); the gated delta
rule is Yang, Kautz and Hatamizadeh, arXiv 2412.06464.
"""

from typing import NamedTuple

import torch
from transformers import OlmoHybridConfig, OlmoHybridForCausalLM

from kingpost.errors import UsageError

VOCABULARY = 12_160
END_OF_TEXT = 0
"""Id of the one special token, which ends every document."""
_HEAD = 64
_FULL_ATTENTION_EVERY = 4
MAX_LENGTH = 2048


class Shape(NamedTuple):
    """What the sizes differ in."""

    blocks: int
    hidden: int
    heads: int
    intermediate: int


FAMILY = {
    "D2": Shape(blocks=2, hidden=128, heads=2, intermediate=256),
    "D8": Shape(blocks=8, hidden=512, heads=8, intermediate=1152),
    "D12": Shape(blocks=12, hidden=768, heads=12, intermediate=1792),
    "D16": Shape(blocks=16, hidden=1216, heads=19, intermediate=2688),
}
"""D8 has 30,440,416 parameters, D12 92,777,496, D16 284,838,280; D2 is for trying things out."""


def shape_of(size: str) -> Shape:
    """The shape of a size.

    Raises:
        UsageError: The family has no such size.
    """
    if size not in FAMILY:
        raise UsageError(f"There is no size {size!r}: give {', '.join(FAMILY)}.")
    return FAMILY[size]


def build(size: str, seed: int = 0) -> OlmoHybridForCausalLM:
    """A model of the family with random weights, float32, on the CPU.

    Args:
        size: A key of `FAMILY`.
        seed: Of the weights.

    Raises:
        UsageError: The family has no such size.
    """
    config = _config(shape_of(size))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return OlmoHybridForCausalLM(config)


def _config(shape: Shape) -> OlmoHybridConfig:
    last = shape.blocks - 1  # full attention in all sizes; the model type asks for one at least
    full = [(i + 1) % _FULL_ATTENTION_EVERY == 0 or i == last for i in range(shape.blocks)]
    return OlmoHybridConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.blocks,
        layer_types=["full_attention" if f else "linear_attention" for f in full],
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        linear_num_key_heads=shape.heads,
        linear_num_value_heads=shape.heads,
        linear_key_head_dim=_HEAD,
        linear_value_head_dim=_HEAD,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_OF_TEXT,
        pad_token_id=None,
    )
