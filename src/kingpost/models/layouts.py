"""How parameters that serve several roles at once are laid out, as written in their models' code.

A layout says which output features of a fused parameter belong to which role. Every one of them is
the same picture: the features come in equal groups (often one for each head), and every group
consists of runs, one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kingpost.errors import KingpostError


@dataclass(frozen=True, eq=False)
class Fused:
    """A parameter to be taken apart.

    Attributes:
        n: Number of its output features.
        holder: The module it is a part of; its attributes say how many heads there are.
        config: The configuration of the text model.
    """

    n: int
    holder: nn.Module
    config: Any

    def size(self, *names: str) -> int:
        """The first of these attributes that the holder has, or else the configuration.

        Raises:
            KingpostError: Neither has any of them.
        """
        for source in (self.holder, self.config):
            for name in names:
                if isinstance(value := getattr(source, name, None), int):
                    return value
        raise KingpostError(
            f"{type(self.holder).__name__} does not say how its fused weights are laid out: it has "
            f"no {' or '.join(names)}; give it a rule of its own with add_rule."
        )

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.size("num_heads", "num_attention_heads", "n_heads", "n_head")


# From each role to the positions of its features in the order of the outputs, int64 [n]; None: all.
Layout = Callable[[Fused], dict[str, torch.Tensor | None]]


def split(n: int, groups: int, *runs: tuple[str, int]) -> dict[str, torch.Tensor | None]:
    """Positions by role where each of some equal groups consists of the same runs.

    Args:
        n: Number of features.
        groups: Number of groups.
        runs: Role and length of each run of a group; features with the role "" have none.

    Raises:
        KingpostError: The groups do not add up to the features.
    """
    if groups * sum(length for _, length in runs) != n:
        raise KingpostError(
            f"A fused weight of {n} features does not consist of {groups} times "
            f"{', '.join(f'{length} {role}' for role, length in runs)}: "
            "give it a rule of its own with add_rule."
        )
    pieces = torch.arange(n).view(groups, -1).split([length for _, length in runs], dim=1)
    return {role: piece.flatten() for (role, _), piece in zip(runs, pieces, strict=True) if role}


def concatenated_qkv(f: Fused) -> dict[str, torch.Tensor | None]:
    """All queries, all keys, all values (phi3, dbrx, mpt)."""
    kv = f.size("num_key_value_heads", "num_heads", "n_heads")
    width = f.n // (f.heads + 2 * kv)
    return split(
        f.n, 1, ("q_proj", f.heads * width), ("k_proj", kv * width), ("v_proj", kv * width)
    )


def grouped_qkv(f: Fused) -> dict[str, torch.Tensor | None]:
    """For each key head its queries, the key, the value (gpt_neox, bloom, persimmon, falcon)."""
    if getattr(f.holder, "new_decoder_architecture", False):
        groups = f.size("num_kv_heads")
    else:
        groups = 1 if getattr(f.holder, "multi_query", False) else f.heads
    width = f.n // (f.heads + 2 * groups)
    queries = f.heads // groups * width
    return split(f.n, groups, ("q_proj", queries), ("k_proj", width), ("v_proj", width))


def c_attn(f: Fused) -> dict[str, torch.Tensor | None]:
    """Thirds (gpt2), or as in falcon where keys may be shared (gpt_bigcode)."""
    if hasattr(f.holder, "multi_query"):
        return grouped_qkv(f)
    return split(f.n, 1, ("q_proj", f.n // 3), ("k_proj", f.n // 3), ("v_proj", f.n // 3))


def qkv_proj(f: Fused) -> dict[str, torch.Tensor | None]:
    """Concatenated (phi3), grouped by head (minimax), in four groups of q, v, k (codegen)."""
    if (groups := getattr(f.holder, "mp_num", None)) is not None:
        width = f.n // groups // 3
        return split(f.n, groups, ("q_proj", width), ("v_proj", width), ("k_proj", width))
    lightning = hasattr(f.holder, "slope_rate")
    return grouped_qkv(f) if lightning else concatenated_qkv(f)


def query_and_gate(f: Fused) -> dict[str, torch.Tensor | None]:
    """Query and output gate for each head (qwen3_next, qwen3_5), where it is twice as wide."""
    inner = getattr(getattr(f.holder, "o_proj", None), "in_features", 0)
    if f.n != 2 * inner or getattr(f.holder, "v_head_dim", None) is not None:
        return {"q_proj": None}
    width = f.size("head_dim")
    return split(f.n, f.n // (2 * width), ("q_proj", width), ("out_gate", width))


def latent_query_and_gate(f: Fused) -> dict[str, torch.Tensor | None]:
    """Query and output gate for each head, the gate as wide as a value (axk2)."""
    return split(
        f.n, f.heads, ("q_proj", f.size("qk_head_dim")), ("out_gate", f.size("v_head_dim"))
    )


def latent_key_and_value(f: Fused) -> dict[str, torch.Tensor | None]:
    """The part of the key without positions, and the value, for each head (kv_b_proj)."""
    key, value = f.size("qk_nope_head_dim"), f.size("v_head_dim")
    return split(f.n, f.n // (key + value), ("k_proj", key), ("v_proj", value))


def latent_and_rotary_key(f: Fused) -> dict[str, torch.Tensor | None]:
    """The latent, then the rotary key that all heads share (kv_a_proj_with_mqa)."""
    rotary = f.size("qk_rope_head_dim")
    return split(f.n, 1, ("", f.n - rotary), ("k_proj", rotary))


def key_and_value(f: Fused) -> dict[str, torch.Tensor | None]:
    """All keys, all values (jetmoe)."""
    return split(f.n, 1, ("k_proj", f.n // 2), ("v_proj", f.n // 2))


def delta_qkv(f: Fused) -> dict[str, torch.Tensor | None]:
    """All queries, all keys, all values of a gated delta layer (qwen3_5)."""
    key, value = f.size("key_dim"), f.size("value_dim")
    return split(f.n, 1, ("q_proj", key), ("k_proj", key), ("v_proj", value))


def delta_qkvz(f: Fused) -> dict[str, torch.Tensor | None]:
    """For each key head query, key, its values, their gates (qwen3_next)."""
    groups, key = f.size("num_k_heads"), f.size("head_k_dim")
    values = f.size("num_v_heads") // groups * f.size("head_v_dim")
    runs = (("q_proj", key), ("k_proj", key), ("v_proj", values), ("out_gate", values))
    return split(f.n, groups, *runs)


def delta_ba(f: Fused) -> dict[str, torch.Tensor | None]:
    """For each key head the beta and then the alpha of its value heads (qwen3_next)."""
    groups = f.size("num_k_heads")
    values = f.n // groups // 2
    return split(f.n, groups, ("beta", values), ("alpha", values))


def mlstm_qkvo(f: Fused) -> dict[str, torch.Tensor | None]:
    """All queries, keys, values and output gates (xlstm with fused weights)."""
    key, value = f.size("qk_dim"), f.size("v_dim")
    return split(f.n, 1, ("q_proj", key), ("k_proj", key), ("v_proj", value), ("out_gate", value))


def ssm_in_proj(f: Fused) -> dict[str, torch.Tensor | None]:
    """The gate z first (mamba2), after x (mamba), in turn with x (zamba); the rest has no role."""
    inner = f.holder.get_parameter("out_proj.weight").shape[1]
    if hasattr(f.holder, "x_proj_weight"):
        return split(f.n, f.n // 2, ("", 1), ("out_gate", 1))
    if f.n == 2 * inner:
        return split(f.n, 1, ("", inner), ("out_gate", inner))
    return split(f.n, 1, ("out_gate", inner), ("", f.n - inner))


def short_conv_in_proj(f: Fused) -> dict[str, torch.Tensor | None]:
    """Input gate B, output gate C, x (lfm2)."""
    return split(f.n, 1, ("", f.n // 3), ("out_gate", f.n // 3), ("", f.n // 3))


def gate_up(f: Fused) -> dict[str, torch.Tensor | None]:
    """The first half is the gate (phi3, most experts), or every other feature is (gpt_oss)."""
    if getattr(f.holder, "is_concatenated", True):
        return split(f.n, 1, ("gate_proj", f.n // 2), ("up_proj", f.n // 2))
    return split(f.n, f.n // 2, ("gate_proj", 1), ("up_proj", 1))


def up_or_gate_up(f: Fused) -> dict[str, torch.Tensor | None]:
    """Gate and up (moshi) where it is twice as wide as what `fc2` takes, else up alone."""
    inner = getattr(getattr(f.holder, "fc2", None), "in_features", None)
    return gate_up(f) if inner is not None and f.n == 2 * inner else {"up_proj": None}
