"""Roles and sub-layers of one block, on one model of every kind of architecture."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from architectures import hook_reference as reference
from architectures.configs import build
from architectures.roles_table import IDS, NOT_THE_SKIP, logits_with_zeros, parts, skip_misfit
from kingpost.errors import KingpostError, UsageError
from kingpost.models import roles
from kingpost.models.component import Component
from kingpost.models.layouts import Fused, split
from kingpost.models.roles import add_rule, role_components
from kingpost.models.structure import block_kinds, find_blocks

pytestmark = pytest.mark.usefixtures("one_thread")

TYPES = [
    *("axk2", "bailing_hybrid", "bert", "bloom", "codegen", "dbrx", "deepseek_v3", "falcon"),
    *("falcon_h1", "gemma2", "gemma3n_text", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss"),
    *("granitemoehybrid", "jamba", "jetmoe", "kimi_linear", "lfm2", "llama", "llama4_text"),
    *("longcat_flash", "mamba2", "mixtral", "modernbert-decoder", "mpt", "nemotron_h"),
    *("olmo_hybrid", "opt", "phi3", "prophetnet", "qwen3_5_text", "qwen3_next", "qwen3_moe"),
    *("recurrent_gemma", "rwkv", "whisper", "xlnet", "zamba2"),
]
# Fused parameters of which some features have no role: the latent, and what is not a gate.
PARTLY = (".kv_a_proj_with_mqa.", ".in_proj.")
KNOWN = {t for types in NOT_THE_SKIP.values() for t in types}


@pytest.fixture(scope="module", params=TYPES)
def built(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, build(request.param)


def listed(hf: Any) -> list[tuple[int, nn.Module, list[Component]]]:
    """The components of one block of each kind."""
    blocks = find_blocks(hf)[1]
    return [(k[0], blocks[k[0]], parts(hf, k[0])) for k in block_kinds(blocks)]


def names(model_type: str, index: int) -> list[str]:
    return [c.name for c in parts(build(model_type), index)]


def test_the_parts_of_a_fused_parameter_are_disjoint_and_cover_it(built: tuple[str, Any]) -> None:
    for _, block, components in listed(built[1]):
        pieces: dict[tuple[str, int], list[torch.Tensor]] = defaultdict(list)
        for component in (c for c in components if c.kind == "role"):
            for s in component.slices:
                n = block.get_parameter(s.parameter).shape[s.axis]
                pieces[s.parameter, s.axis].append(torch.arange(n) if s.index is None else s.index)
        assert len({name for name, _ in pieces}) == len(pieces), "a parameter has two axes"
        for (name, axis), found in pieces.items():
            positions = torch.cat(found).sort().values
            n = block.get_parameter(name).shape[axis]
            assert positions.dtype == torch.int64
            if any(part in f".{name}" for part in PARTLY):
                assert len(positions.unique()) == len(positions) < n
            else:
                assert torch.equal(positions, torch.arange(n)), name


def test_a_block_without_its_sublayers_is_the_block_skipped(built: tuple[str, Any]) -> None:
    model_type, hf = built
    assert bool(skip_misfit(hf)) == (model_type in KNOWN)


def test_zero_outputs_of_a_role_are_zero_weights_of_it(built: tuple[str, Any]) -> None:
    model_type, hf = built
    if model_type == "zamba2":
        pytest.skip("other blocks have the same weights, and outputs of their own")
    for _, block, components in listed(hf):
        for component in (c for c in components if c.kind == "role" and c.outputs):
            expected = logits_without_weights(hf, block, component)
            found = logits_without_outputs(hf, block, component)
            assert torch.allclose(found, expected, atol=1e-5, rtol=0), component.name


def test_zero_outputs_of_experts_are_zero_weights_of_them(built: tuple[str, Any]) -> None:
    hf = built[1]
    plain = reference.logits_of(hf, IDS)
    for _, block, components in listed(hf):
        for component in (c for c in components if c.name == "experts" and c.outputs):
            expected = logits_without_weights(hf, block, component)
            found = logits_with_zeros(hf, block, [component])
            assert torch.allclose(found, expected, atol=1e-5, rtol=0)
            assert not torch.allclose(found, plain, atol=1e-3)


def logits_without_weights(hf: Any, block: nn.Module, component: Component) -> torch.Tensor:
    kept = {s.parameter: block.get_parameter(s.parameter).clone() for s in component.slices}
    with torch.no_grad():
        for s in component.slices:
            p = block.get_parameter(s.parameter)
            index = torch.arange(p.shape[s.axis]) if s.index is None else s.index
            p.index_fill_(s.axis, index, 0.0)
        logits = reference.logits_of(hf, IDS)
        for name, value in kept.items():
            block.get_parameter(name).copy_(value)
    return logits


def logits_without_outputs(hf: Any, block: nn.Module, component: Component) -> torch.Tensor:
    fired = []

    def zero(index: torch.Tensor | None) -> Any:
        def hook(module: nn.Module, _: Any, output: torch.Tensor) -> torch.Tensor:
            fired.append(module)
            n = output.shape[-1]
            return output.index_fill(-1, torch.arange(n) if index is None else index, 0.0)

        return hook

    handles = [
        block.get_submodule(o.module).register_forward_hook(zero(o.index))
        for o in component.outputs
    ]
    logits = reference.logits_of(hf, IDS)
    for handle in handles:
        handle.remove()
    assert len(set(fired)) == len(handles), f"a module of {component.name} was not called"
    return logits


def test_norms_have_no_role_and_every_block_has_sublayers(built: tuple[str, Any]) -> None:
    for _, block, components in listed(built[1]):
        owned = {s.parameter for c in components if c.kind == "role" for s in c.slices}
        kinds = {n: type(block.get_submodule(n.rpartition(".")[0])).__name__ for n in owned}
        assert not [n for n, kind in kinds.items() if "norm" in kind.lower()]
        assert {"attn", "ssm", "short_conv", "mlp"} & {c.name for c in components}


@pytest.mark.parametrize(
    ("model_type", "index", "alpha", "beta"),
    [
        ("olmo_hybrid", 0, "linear_attn.a_proj", "linear_attn.b_proj"),
        ("qwen3_next", 0, "linear_attn.in_proj_ba", "linear_attn.in_proj_ba"),
        ("qwen3_5_text", 0, "linear_attn.in_proj_a", "linear_attn.in_proj_b"),
        ("kimi_linear", 0, "self_attn.forget_gate.f_b_proj", "self_attn.b_proj"),
    ],
)
def test_gated_delta_layers_have_alpha_beta_and_queries(
    model_type: str, index: int, alpha: str, beta: str
) -> None:
    components = {c.name: c for c in parts(build(model_type), index)}
    assert components["alpha"].parameters == (alpha,)
    assert components["beta"].parameters == (beta,)
    assert {"q_proj", "k_proj", "v_proj", "o_proj", "out_gate", "conv"} <= components.keys()
    assert not {"alpha", "beta"} & set(names(model_type, 1))


def test_the_components_of_a_block_are_in_order() -> None:
    assert names("llama", 0) == [
        *("attn", "mlp", "q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    ]
    assert names("gpt2", 0) == [
        *("attn", "mlp", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"),
    ]
    assert names("mixtral", 0)[-2:] == ["router", "experts"]
    assert names("falcon_h1", 0)[:3] == ["attn", "ssm", "mlp"]
    assert names("lfm2", 0)[:2] == ["short_conv", "mlp"]


def test_a_block_with_one_mixer_has_the_sublayer_that_the_mixer_is() -> None:
    found = [names("nemotron_h", i)[0] for i in range(4)]
    assert found == ["ssm", "attn", "mlp", "mlp"]


def test_weights_and_biases_count() -> None:
    components = {c.name: c for c in parts(build("gpt2"), 1)}
    assert [s.parameter for s in components["q_proj"].slices] == [
        "attn.c_attn.weight",
        "attn.c_attn.bias",
    ]
    assert [s.axis for s in components["q_proj"].slices] == [1, 0]
    assert components["q_proj"].n_parameters == 32 * 32 + 32
    assert components["attn"].n_parameters == 32 * 96 + 96 + 32 * 32 + 32
    axes = {s.parameter: s.axis for s in components["mlp"].slices}
    assert axes["mlp.c_fc.weight"] == 1
    assert axes["mlp.c_fc.bias"] == 0
    experts = {c.name: c for c in parts(build("gpt_oss"), 0)}
    assert experts["gate_proj"].n_parameters == 4 * (32 * 48 + 48)
    assert experts["experts"].n_parameters == 4 * (32 * 96 + 96 + 48 * 32 + 32)


def test_outputs_are_given_where_modules_return_all_of_a_role_and_only_there() -> None:
    phi3 = {c.name: c for c in parts(build("phi3"), 0)}
    (output,) = phi3["k_proj"].outputs
    assert output.module == "self_attn.qkv_proj"
    assert torch.equal(output.index, torch.arange(32, 48))
    # The routed experts are tensors, only the shared one is a module.
    shared = {c.name: c for c in parts(build("deepseek_v3"), 1)}
    assert shared["gate_proj"].outputs == ()
    assert [o.module for o in shared["mlp"].outputs] == ["mlp"]
    assert {c.name: c for c in parts(build("longcat_flash"), 0)}["experts"].outputs == ()


def test_attention_to_other_inputs_is_no_attention_of_the_block() -> None:
    for model_type in ("whisper", "prophetnet"):
        used = [s.parameter for c in parts(build(model_type), 0) for s in c.slices]
        assert not [name for name in used if name.startswith(("encoder_attn", "cross_attn"))]


class Foreign(nn.Module):
    """A block whose names no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Module()
        self.mix.to_qv = nn.Linear(8, 16)
        self.mix.back = nn.Linear(8, 8)


@pytest.fixture
def own_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(roles, "_users_rules", [])
    roles._rule.cache_clear()
    yield
    roles._rule.cache_clear()


@pytest.mark.usefixtures("own_rules")
def test_a_user_adds_rules() -> None:
    block = Foreign()
    assert role_components(0, block, None) == []
    add_rule(r"to_qv$", lambda f: split(f.n, 1, ("q_proj", f.n // 2), ("v_proj", f.n // 2)))
    add_rule(r"mix\.back$", "o_proj")
    found = {c.name: c for c in role_components(3, block, None)}
    assert list(found) == ["attn", "q_proj", "v_proj", "o_proj"]
    assert found["attn"].outputs[0].module == "mix"
    assert torch.equal(found["v_proj"].slices[1].index, torch.arange(8, 16))
    assert {c.block for c in found.values()} == {3}


@pytest.mark.usefixtures("own_rules")
def test_a_users_rule_comes_first_and_the_last_one_before_others() -> None:
    block = find_blocks(build("llama"))[1][0]
    add_rule("q_proj", "first")
    add_rule("q_proj", "second")
    found = [c.name for c in role_components(0, block, None)]
    assert "second" in found
    assert not {"first", "q_proj"} & set(found)


def test_a_pattern_that_is_no_expression_is_refused() -> None:
    with pytest.raises(UsageError, match=r"is no regular expression .* re\.escape"):
        add_rule("(", "q_proj")


def test_a_layout_that_does_not_fit_is_refused() -> None:
    with pytest.raises(KingpostError, match=r"does not consist of 2 times 3 a, 2 b: .* add_rule"):
        split(8, 2, ("a", 3), ("b", 2))
    with pytest.raises(KingpostError, match=r"Linear does not say .* it has no num_k_heads"):
        Fused(8, nn.Linear(1, 1), None).size("num_k_heads")


def test_groups_of_runs() -> None:
    found = split(12, 2, ("a", 3), ("", 1), ("b", 2))
    assert {role: index.tolist() for role, index in found.items()} == {
        "a": [0, 1, 2, 6, 7, 8],
        "b": [4, 5, 10, 11],
    }
