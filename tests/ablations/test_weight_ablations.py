"""Ablations of weights against values computed by hand, and the weights afterwards."""

import math

import numpy as np
import pytest
import torch
import transformers

import kingpost
from architectures.configs import build
from kingpost.ablations import Setting, ablation_for
from kingpost.errors import UsageError
from kingpost.models import Component
from kingpost.scanning import targets
from tests_support import tiny_llama


def component(model: kingpost.Model, name: str, block: int = 1) -> Component:
    (found,) = (c for c in model.select([name]) if c.block == block)
    return found


def edited(
    model: kingpost.Model, name: str, ablation: str, parameter: str, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The values of one parameter of block 1 before and within an edit."""
    target = component(model, name)
    tensor = model.blocks[1].get_parameter(parameter)
    before = tensor.detach().clone()
    change = ablation_for(ablation, target)[1].change(model, target, Setting(seed))
    with change.edit():
        within = tensor.detach().clone()
    assert torch.equal(tensor, before)
    return before.numpy(), within.numpy()


@pytest.fixture
def model() -> kingpost.Model:
    hf = tiny_llama(attention_bias=True)
    for name, parameter in hf.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return kingpost.load_model(hf, device="cpu")


def test_zero_takes_weight_and_bias_of_a_role_and_only_the_weight_of_a_parameter(
    model: kingpost.Model,
) -> None:
    weight, bias = "self_attn.k_proj.weight", "self_attn.k_proj.bias"
    assert not edited(model, "k_proj", "zero", weight)[1].any()
    assert not edited(model, "k_proj", "zero", bias)[1].any()
    assert not edited(model, "self_attn.k_proj", "zero", weight)[1].any()
    before, within = edited(model, "self_attn.k_proj", "zero", bias)
    assert np.array_equal(before, within)
    assert before.any()


def test_zero_leaves_all_other_weights(model: kingpost.Model) -> None:
    before = {n: p.detach().clone() for n, p in model.hf.named_parameters()}
    target = component(model, "v_proj")
    with ablation_for("zero", target)[1].change(model, target, Setting()).edit():
        differing = [n for n, p in model.hf.named_parameters() if not torch.equal(p, before[n])]
    prefix = "model.layers.1.self_attn.v_proj"
    assert sorted(differing) == [f"{prefix}.bias", f"{prefix}.weight"]


def test_identity(model: kingpost.Model) -> None:
    _, within = edited(model, "q_proj", "identity", "self_attn.q_proj.weight")
    assert np.array_equal(within, np.eye(32))
    assert not edited(model, "q_proj", "identity", "self_attn.q_proj.bias")[1].any()


def test_shrink(model: kingpost.Model) -> None:
    before, within = edited(model, "mlp", "shrink:0.25", "mlp.up_proj.weight")
    np.testing.assert_allclose(within, before * 0.75, rtol=1e-6)


def test_noise_has_the_size_asked_for_and_a_seed_for_each_site(model: kingpost.Model) -> None:
    name = "mlp.up_proj.weight"
    before, within = edited(model, "up_proj", "noise:0.5", name)
    added = (within - before) / math.sqrt((before.astype(np.float64) ** 2).mean())
    # 1536 draws: four standard errors of a mean and of a standard deviation.
    assert abs(added.mean()) < 4 * 0.5 / math.sqrt(added.size)
    assert added.std() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(2 * added.size))
    assert np.array_equal(edited(model, "up_proj", "noise:0.5", name)[1], within)
    assert not np.array_equal(edited(model, "up_proj", "noise:0.5", name, seed=1)[1], within)
    other = component(model, "up_proj", block=2)
    change = ablation_for("noise:0.5", other)[1].change(model, other, Setting())
    tensor = model.blocks[2].get_parameter(name)
    before_2 = tensor.detach().clone()
    with change.edit():
        added_2 = ((tensor - before_2) / before_2.square().mean().sqrt()).detach().numpy()
    assert abs(np.corrcoef(added.ravel(), added_2.ravel())[0, 1]) < 0.15


def rounded_by_hand(matrix: np.ndarray, bits: int, group: int) -> np.ndarray:
    result = np.empty(matrix.shape)
    for row in range(matrix.shape[0]):
        for start in range(0, matrix.shape[1], group):
            part = matrix[row, start : start + group].astype(np.float64)
            step = abs(part).max() / (2 ** (bits - 1) - 1)
            result[row, start : start + group] = np.round(part / step) * step
    return result


@pytest.mark.parametrize(
    ("name", "bits", "group"), [("quantize:4", 4, 128), ("quantize:3:5", 3, 5)]
)
def test_quantize(model: kingpost.Model, name: str, bits: int, group: int) -> None:
    before, within = edited(model, "o_proj", name, "self_attn.o_proj.weight")
    np.testing.assert_allclose(within, rounded_by_hand(before, bits, group), atol=1e-6)
    before, within = edited(model, "o_proj", name, "self_attn.o_proj.bias")
    assert np.array_equal(before, within)


def test_quantize_groups_run_along_the_inputs_of_a_transposed_matrix() -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=32)
    model = kingpost.load_model(transformers.GPT2LMHeadModel(config), device="cpu")
    before, within = edited(model, "down_proj", "quantize:4:8", "mlp.c_proj.weight")
    np.testing.assert_allclose(within.T, rounded_by_hand(before.T, 4, 8), atol=1e-6)


def test_weights_are_put_back_after_an_exception_and_where_they_are_tied() -> None:
    hf = tiny_llama(tie_word_embeddings=True)
    hf.model.layers[2].mlp.up_proj.weight = hf.model.layers[1].mlp.up_proj.weight
    model = kingpost.load_model(hf, device="cpu")
    before = {n: p.detach().clone() for n, p in hf.named_parameters(remove_duplicate=False)}
    target = component(model, "up_proj")
    change = ablation_for("noise:1", target)[1].change(model, target, Setting())
    assert change.touched == {1, 2}

    def fail() -> None:
        with change.edit():
            assert not torch.equal(hf.model.layers[2].mlp.up_proj.weight, before[shared])
            raise ZeroDivisionError

    shared = "model.layers.2.mlp.up_proj.weight"
    with pytest.raises(ZeroDivisionError):
        fail()
    for name, parameter in hf.named_parameters(remove_duplicate=False):
        assert torch.equal(parameter, before[name]), name


def test_a_weight_that_is_held_outside_the_stack_has_no_first_block() -> None:
    hf = tiny_llama()
    hf.model.norm.weight = hf.model.layers[1].input_layernorm.weight
    model = kingpost.load_model(hf, device="cpu")
    target = component(model, "input_layernorm")
    assert ablation_for("shrink:1", target)[1].change(model, target, Setting()).touched == set()


@pytest.mark.parametrize("kind", ["gemma", "llama", "layer"])
def test_norms_are_switched_off_or_made_to_multiply_by_one(kind: str) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    torch.manual_seed(0)
    if kind == "gemma":  # multiplies by 1 + weight
        hf = transformers.GemmaForCausalLM(transformers.GemmaConfig(**sizes))
    elif kind == "llama":
        hf = tiny_llama()
    else:
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64)
        hf = transformers.GPT2LMHeadModel(config)
    for name, parameter in hf.named_parameters():
        if "norm" in name or "ln_1" in name:  # biases as large as what they are added to
            torch.nn.init.normal_(parameter, std=2.0)
    model = kingpost.load_model(hf, device="cpu")
    name = "ln_1" if kind == "layer" else "input_layernorm"
    target, norm = component(model, name), model.blocks[1].get_submodule(name)
    hidden = torch.randn(3, 32)
    bias = norm.bias if kind == "layer" else torch.zeros(32)
    with torch.no_grad():
        with ablation_for("zero", target)[1].change(model, target, Setting()).edit():
            assert torch.equal(norm(hidden), bias.expand(3, 32))
        with ablation_for("ones", target)[1].change(model, target, Setting()).edit():
            out = norm(hidden) - bias
    centred = hidden - hidden.mean(-1, keepdim=True) if kind == "layer" else hidden
    expected = centred / centred.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("where", "ablation", "message"),
    [
        ("blocks", "zero", "zero is not defined on a whole block"),
        ("attn", "skip", "skip takes whole blocks away, and attn is a part of one: use zero"),
        (
            "k_proj",
            "identity",
            "needs one square matrix, and k_proj of a block is 16 × 32",
        ),
        ("mlp", "identity", "and mlp of a block is 48 × 32 and 48 × 32 and 32 × 48"),
        ("norms", "quantize:4", "quantize rounds matrices, and input_layernorm is a vector"),
        ("q_proj", "pin:1", "pin is defined on alpha and beta of gated delta layers, not on q_pro"),
        ("blocks", "mean", "mean replaces what a module returns, and no module returns block"),
        ("q_proj", "ones", "ones of norms needs the weight of a normalisation, not q_proj"),
        ("q_proj", "pin:2", "give pin:0 or pin:1"),
        ("q_proj", "noise", "'noise' is not understood: write noise:σ"),
        ("q_proj", "noise:x", "noise:x is not understood: give noise:σ, a multiple"),
        ("q_proj", "quantize:1", "quantize:1 is not understood: give quantize:bits, 2 to 16"),
        ("q_proj", "shrink:2", "the share that is taken away, 0 to 1"),
        ("q_proj", "zero:1", "'zero:1' is not understood: write zero"),
        ("q_proj", "drop", "Unknown ablation 'drop': there is skip, zero, mean, resample, ident"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(
    tiny_model: kingpost.Model, where: str, ablation: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        targets(tiny_model, [where], ablation, ["ablation"])


def test_a_norm_with_a_gate_is_known_and_one_of_other_arguments_is_refused(
    tiny_model: kingpost.Model,
) -> None:
    model = kingpost.load_model(build("kimi_linear"), device="cpu")
    target = next(c for c in model.parameters() if c.name == "self_attn.o_norm")
    norm = model.blocks[target.block].self_attn.o_norm
    hidden = torch.randn(3, *norm.weight.shape)
    change = ablation_for("zero", target)[1].change(model, target, Setting())
    with torch.no_grad(), change.edit():
        assert not norm(hidden, torch.ones_like(hidden)).any()

    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, one: object, two: object, three: object) -> object:
            return three

    tiny_model.blocks[0].odd_norm = Odd()
    with pytest.raises(UsageError, match="zero is not defined on odd_norm, since it does not work"):
        targets(tiny_model, ["odd_norm"], "zero", ["ablation"])
