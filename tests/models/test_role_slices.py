"""The slices of a role against the modelling code: what a model itself computes as q, k, v, ..."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from architectures import configs
from kingpost.models.roles import role_components
from kingpost.models.structure import find_blocks

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = torch.randint(3, 120, (2, 24), generator=torch.Generator().manual_seed(1))
QKV = ("q_proj", "k_proj", "v_proj")


Edit = Callable[[torch.Tensor, int], torch.Tensor]  # of a part of a parameter, along an axis


def zero(part: torch.Tensor, _: int) -> torch.Tensor:
    return torch.zeros_like(part)


def triple(part: torch.Tensor, _: int) -> torch.Tensor:
    return 3.0 * part


def roll(part: torch.Tensor, axis: int) -> torch.Tensor:
    """Every output feature becomes the one before it: tells q from k, gate from up, and orders."""
    return part.roll(1, axis)


@contextlib.contextmanager
def changed(
    hf: Any, index: int, role: str, edit: Edit = zero, part: slice = slice(None)
) -> Iterator[None]:
    """Within it, the weights with a role are edited, or those of a part of its features."""
    block = find_blocks(hf)[1][index]
    component = {c.name: c for c in role_components(index, block, hf.config)}[role]
    saved = {
        s.parameter: block.get_parameter(s.parameter).detach().clone() for s in component.slices
    }
    for s in component.slices:
        data = block.get_parameter(s.parameter).data
        positions = torch.arange(data.shape[s.axis]) if s.index is None else s.index
        chosen = data.index_select(s.axis, positions[part])
        data.index_copy_(s.axis, positions[part], edit(chosen, s.axis))
    try:
        yield
    finally:
        for name, value in saved.items():
            block.get_parameter(name).data.copy_(value)


def build(model_type: str, **sizes: Any) -> Any:
    """A tiny model, with other sizes than usual."""
    config = configs.tiny_config(model_type)
    for name, value in sizes.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    hf = AutoModelForCausalLM.from_config(config).float().eval()
    configs._draw_weights(hf)
    return hf


@torch.no_grad()
def logits(hf: Any) -> torch.Tensor:
    return hf(input_ids=IDS, use_cache=False).logits


# --- what reaches the attention function ----------------------------------------------------------

_seen: list[tuple[nn.Module, tuple[torch.Tensor, ...]]] = []


def _look(module: nn.Module, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention as the model's own code has it, which keeps what it was given."""
    _seen.append((module, (query.detach(), key.detach(), value.detach())))
    own = sys.modules[type(module).__module__].eager_attention_forward
    return own(module, query, key, value, *args, **kwargs)


AttentionInterface.register("look", _look)
AttentionMaskInterface.register("look", eager_mask)


def attention_inputs(hf: Any, block: nn.Module) -> tuple[torch.Tensor, ...]:
    """Query, key and value that the attention of a block computes with, [B, heads, T, hd]."""
    _seen.clear()
    logits(hf)
    inside = {id(m) for m in block.modules()}
    found = [qkv for module, qkv in _seen if id(module) in inside]
    return found[0] if found else ()


# Every way in which types that call the attention function lay out q, k and v.
SEEN = {
    "afmoe": 0,
    "axk2": 1,
    "bert": 0,
    "biogpt": 0,
    "dbrx": 0,
    "deepseek_v3": 1,
    "gemma3n_text": 1,
    "gpt2": 0,
    "gpt_bigcode": 0,
    "gpt_neox": 0,
    "gpt_oss": 0,
    "jamba": 1,
    "kimi_linear": 1,
    "lfm2": 1,
    "llama": 0,
    "longcat_flash": 1,
    "mixtral": 0,
    "modernbert-decoder": 0,
    "nemotron_h": 1,
    "opt": 0,
    "phi": 0,
    "phi3": 0,
    "qwen3_5_text": 1,
    "qwen3_next": 1,
    "whisper": 0,
    "zamba2": 1,
}


@pytest.mark.parametrize("model_type", sorted(SEEN))
def test_the_attention_receives_zeros_for_a_role_and_the_rest_as_before(model_type: str) -> None:
    check_attention_inputs(configs.build(model_type), SEEN[model_type])


def test_keys_and_values_of_gpt_bigcode_with_many_heads() -> None:
    check_attention_inputs(build("gpt_bigcode", multi_query=False), 0)


def check_attention_inputs(hf: Any, index: int) -> None:
    hf.set_attn_implementation("look")
    block = find_blocks(hf)[1][index]
    before, plain = attention_inputs(hf, block), logits(hf)
    assert before, "the attention function was not called"
    for position, role in enumerate(QKV):
        with changed(hf, index, role):
            after = attention_inputs(hf, block)
            assert not torch.equal(logits(hf), plain), f"zeroing {role} changes nothing"
        for other in range(3):
            zero = torch.zeros_like(before[other])
            expected = zero if other == position else before[other]
            assert torch.equal(after[other], expected), f"{QKV[other]} without {role}"
    assert torch.equal(logits(hf), plain)


@pytest.mark.parametrize(
    "model_type", ["dbrx", "gpt2", "gpt_bigcode", "gpt_neox", "llama", "phi3", "qwen3_next"]
)
def test_heads_are_in_order(model_type: str) -> None:
    hf, index = configs.build(model_type), SEEN[model_type]
    hf.set_attn_implementation("look")
    block = find_blocks(hf)[1][index]
    before = attention_inputs(hf, block)[0]
    with changed(hf, index, "q_proj", part=slice(8, 16)):  # the second head of four
        after = attention_inputs(hf, block)[0]
    assert not after[:, 1].any()
    assert torch.equal(after[:, [0, 2, 3]], before[:, [0, 2, 3]])


# --- what a fused module returns, taken apart as the modelling code does --------------------------


View = Callable[[torch.Tensor], torch.Tensor]  # of the part of an output with a role


def runs(shape: tuple[int, ...], **roles: tuple[int, int]) -> dict[str, View]:
    """Ranges of the last axis when the features are viewed in another shape."""

    def view(start: int, end: int) -> View:
        return lambda out: out.view(*out.shape[:-1], *shape)[..., start:end]

    return {role: view(*ends) for role, ends in roles.items()}


def thirds() -> dict[str, View]:
    return {role: lambda out, i=i: out.chunk(3, dim=-1)[i] for i, role in enumerate(QKV)}


def heads_of_three() -> dict[str, View]:
    return {
        role: lambda out, i=i: out.view(*out.shape[:2], 4, 3, 8)[..., i, :]
        for i, role in enumerate(QKV)
    }


def falcon(*shape: int) -> dict[str, View]:
    parts: dict[str, Any] = {"q_proj": slice(0, -2), "k_proj": -2, "v_proj": -1}
    return {
        role: lambda out, part=part: out.view(*out.shape[:2], *shape, 8)[..., part, :]
        for role, part in parts.items()
    }


NEW = {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 2}
OLD = {"multi_query": False, "num_kv_heads": 4}
GATE_UP = {"gate_proj": (0, 48), "up_proj": (48, 96)}
BOTH = {"q_proj": (0, 8), "out_gate": (8, 16)}
QKVZ = {"q_proj": (0, 8), "k_proj": (8, 16), "v_proj": (16, 32), "out_gate": (32, 48)}
# Type, block, sizes other than usual, fused module, and for each role a view of what that returns.
FUSED: list[tuple[str, int, dict[str, Any], str, dict[str, View]]] = [
    ("axk2", 0, {}, "self_attn.q_gate_proj", runs((4, 20), q_proj=(0, 12), out_gate=(12, 20))),
    ("bamba", 0, {}, "mamba.in_proj", runs((152,), out_gate=(0, 64))),
    ("bloom", 0, {}, "self_attention.query_key_value", heads_of_three()),
    (
        *("codegen", 0, {}, "attn.qkv_proj"),
        runs((4, 24), q_proj=(0, 8), v_proj=(8, 16), k_proj=(16, 24)),
    ),
    ("falcon", 0, OLD, "self_attention.query_key_value", heads_of_three()),
    ("falcon", 0, {"multi_query": True}, "self_attention.query_key_value", falcon(4 + 2)),
    ("falcon", 0, NEW, "self_attention.query_key_value", falcon(2, 4 // 2 + 2)),
    ("glm", 0, {}, "mlp.gate_up_proj", runs((96,), **GATE_UP)),
    ("gpt_neox_japanese", 0, {}, "attention.query_key_value", heads_of_three()),
    ("jamba", 0, {}, "mamba.in_proj", runs((128,), out_gate=(64, 128))),
    ("jetmoe", 0, {}, "self_attention.kv_proj", runs((32,), k_proj=(0, 16), v_proj=(16, 32))),
    ("lfm2", 0, {}, "conv.in_proj", runs((96,), out_gate=(32, 64))),
    ("mamba", 0, {}, "mixer.in_proj", runs((96,), out_gate=(48, 96))),
    ("mamba2", 0, {}, "mixer.in_proj", runs((152,), out_gate=(0, 64))),
    ("minimax", 0, {}, "self_attn.qkv_proj", heads_of_three()),
    ("modernbert-decoder", 0, {}, "mlp.Wi", runs((96,), **GATE_UP)),
    ("moshi", 0, {}, "mlp.fc1", runs((48,), gate_proj=(0, 24), up_proj=(24, 48))),
    ("mpt", 0, {}, "attn.Wqkv", thirds()),
    ("openai-gpt", 0, {}, "attn.c_attn", thirds()),
    ("persimmon", 0, {}, "self_attn.query_key_value", heads_of_three()),
    ("phi3", 0, {}, "mlp.gate_up_proj", runs((96,), **GATE_UP)),
    (
        *("qwen3_5_text", 0, {}, "linear_attn.in_proj_qkv"),
        runs((64,), q_proj=(0, 16), k_proj=(16, 32), v_proj=(32, 64)),
    ),
    ("qwen3_next", 0, {}, "linear_attn.in_proj_qkvz", runs((2, 48), **QKVZ)),
    ("qwen3_next", 0, {}, "linear_attn.in_proj_ba", runs((2, 4), beta=(0, 2), alpha=(2, 4))),
    ("qwen3_next", 1, {}, "self_attn.q_proj", runs((4, 16), **BOTH)),
    ("qwen3_5_text", 1, {}, "self_attn.q_proj", runs((4, 16), **BOTH)),
    ("zamba", 0, {}, "mamba.in_proj", runs((64, 2), out_gate=(1, 2))),
]
CASES = [(*case[:4], role, view) for case in FUSED for role, view in case[4].items()]


@pytest.mark.parametrize(
    ("model_type", "block", "sizes", "path", "role", "view"),
    [pytest.param(*c, id=f"{c[0]}-{i}-{c[4]}") for i, c in enumerate(CASES)],
)
def test_a_role_is_what_the_modelling_code_takes_for_it(
    model_type: str, block: int, sizes: dict[str, Any], path: str, role: str, view: Any
) -> None:
    hf = build(model_type, **sizes)
    before = logits(hf)

    def roll_view(_: nn.Module, __: Any, out: torch.Tensor) -> torch.Tensor:
        new = out.clone()
        features = view(out).flatten(2)
        view(new).copy_(features.roll(1, -1).view_as(view(new)))
        return new

    module = find_blocks(hf)[1][block].get_submodule(path)
    handle = module.register_forward_hook(roll_view)
    expected = logits(hf)
    handle.remove()
    with changed(hf, block, role, roll):
        found = logits(hf)
    assert torch.allclose(found, expected, atol=1e-6, rtol=0)
    assert float((found - before).abs().max()) > 1e-4


# --- experts, written by hand ---------------------------------------------------------------------


def silu_expert(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return nn.functional.silu(gate) * up


def gpt_oss_expert(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def mixtral(m: nn.Module, e: int, x: torch.Tensor, g: float, u: float) -> torch.Tensor:
    gate, up = m.gate_up_proj[e][:48], m.gate_up_proj[e][48:]
    return silu_expert(g * (x @ gate.T), u * (x @ up.T)) @ m.down_proj[e].T


def gpt_oss(m: nn.Module, e: int, x: torch.Tensor, g: float, u: float) -> torch.Tensor:
    fused = x @ m.gate_up_proj[e] + m.gate_up_proj_bias[e]
    inner = gpt_oss_expert(g * fused[:, 0::2], u * fused[:, 1::2])
    return inner @ m.down_proj[e] + m.down_proj_bias[e]


def aria(m: nn.Module, e: int, x: torch.Tensor, g: float, u: float) -> torch.Tensor:
    fused = x @ m.gate_up_proj[e]
    return silu_expert(g * fused[:, :48], u * fused[:, 48:]) @ m.down_proj[e]


def dbrx(m: nn.Module, e: int, x: torch.Tensor, g: float, u: float) -> torch.Tensor:
    w1, v1, w2 = (w.view(4, 24, 32)[e] for w in (m.mlp.w1, m.mlp.v1, m.mlp.w2))
    return silu_expert(g * (x @ w1.T), u * (x @ v1.T)) @ w2


EXPERTS = {
    "mixtral": ("mlp.experts", mixtral),
    "gpt_oss": ("mlp.experts", gpt_oss),
    "aria_text": ("mlp.experts", aria),
    "dbrx": ("ffn.experts", dbrx),
}


@pytest.mark.parametrize("model_type", EXPERTS)
@pytest.mark.parametrize(("role", "gate", "up"), [("gate_proj", 3.0, 1.0), ("up_proj", 1.0, 3.0)])
def test_gate_and_up_of_experts_are_those_of_a_hand_written_one(
    model_type: str, role: str, gate: float, up: float
) -> None:
    path, expert = EXPERTS[model_type]
    hf = configs.build(model_type)
    block = find_blocks(hf)[1][1]
    module = block.get_submodule(path)
    given: list[Any] = []
    handle = module.register_forward_hook(lambda _, args, out: given.append((args, out)))
    before = logits(hf)
    with changed(hf, 1, role, triple):
        assert not torch.equal(logits(hf), before)
    handle.remove()
    for (args, out), (g, u) in zip(given, [(1.0, 1.0), (gate, up)], strict=True):
        x, chosen, weights = args[0].reshape(-1, 32), args[1], args[2]
        expected = torch.zeros_like(x)
        for token in range(len(x)):
            for slot, e in enumerate(chosen[token].tolist()):
                y = expert(module, e, x[token : token + 1], g, u)[0]
                expected[token] += weights[token, slot] * y
        assert torch.allclose(out.reshape(-1, 32), expected, atol=1e-5)
