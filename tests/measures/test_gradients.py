"""taylor, taylor_signed and fisher against autograd over the whole model and finite differences."""

import contextlib
import gc
import weakref

import numpy as np
import pytest
import torch
import transformers

import kingpost
from kingpost.ablations import Setting, ablation_for
from kingpost.engine import backward
from kingpost.measures import GRADIENT_MEASURES, GradientSums
from tests_support import tiny_llama


def loss(hf: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits = hf(ids, use_cache=False).logits
    chosen = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
    return -chosen.mean()


def products(model: kingpost.Model, ids: torch.Tensor) -> dict[str, np.ndarray]:
    """w·∂ℓ/∂w of every parameter, by a plain backward over the whole model, float64."""
    model.hf.requires_grad_(True)
    model.hf.zero_grad()
    loss(model.hf, ids).backward()
    found = {
        name: (p.detach().double() * (p.grad if p.grad is not None else 0)).numpy()
        for name, p in model.hf.named_parameters(remove_duplicate=False)
    }
    model.hf.zero_grad()
    return found


def measured(model: kingpost.Model, where: str, ids: torch.Tensor) -> dict[str, dict]:
    components = model.select([where])
    sums = GradientSums(model, components)
    backward(model, ids, sums.parameters, sums)
    keys = [(c.block, c.name) for c in components]
    return {m: dict(zip(keys, sums.values(m), strict=True)) for m in GRADIENT_MEASURES}


IDS = torch.arange(24)[None] * 7 % 64


@pytest.mark.parametrize("where", ["parameters", "components", "blocks"])
def test_sums_are_those_of_a_plain_backward(where: str) -> None:
    model = kingpost.load_model(tiny_llama(attention_bias=True), device="cpu")
    found, product = measured(model, where, IDS), products(model, IDS)
    for c in model.select([where]):
        flat = np.concatenate(
            [product[f"model.layers.{c.block}.{s.parameter}"].ravel() for s in c.slices]
        )
        key = (c.block, c.name)
        assert found["taylor"][key] == pytest.approx(np.abs(flat).sum(), rel=1e-5)
        assert found["taylor_signed"][key] == pytest.approx(-flat.sum(), rel=1e-4, abs=1e-8)
        assert found["fisher"][key] == pytest.approx((flat**2).sum() / 2, rel=1e-5)


def gpt2(dtype: torch.dtype = torch.float32) -> kingpost.Model:
    """Unlike Llama's, its forward pass stays in float64 where the weights are."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=32, initializer_range=0.15
    )
    return kingpost.load_model(transformers.GPT2LMHeadModel(config).to(dtype), device="cpu")


def test_a_slice_of_a_fused_parameter_gets_its_own_sum() -> None:
    model = gpt2()
    found, product = measured(model, "k_proj", IDS), products(model, IDS)
    weight, bias = (product[f"transformer.h.1.attn.c_attn.{n}"] for n in ("weight", "bias"))
    # Conv1D: [in, q | k | v]
    flat = np.concatenate([weight[:, 32:64].ravel(), bias[32:64]])
    assert found["taylor"][1, "k_proj"] == pytest.approx(np.abs(flat).sum(), rel=1e-5)
    assert found["fisher"][1, "k_proj"] == pytest.approx((flat**2).sum() / 2, rel=1e-5)


@pytest.mark.parametrize("where", ["o_proj", "mlp", "ln_2"])
def test_taylor_signed_is_the_slope_of_the_loss_along_shrinking(where: str) -> None:
    model = gpt2(torch.float64)
    found = measured(model, where, IDS)["taylor_signed"]
    step = 1e-4
    for c in model.select([where]):
        plus_minus = []
        for factor in (1 + step, 1 - step):
            tensors = [model.blocks[c.block].get_parameter(s.parameter) for s in c.slices]
            with torch.no_grad():
                saved = [t.clone() for t in tensors]
                for t in tensors:
                    t.mul_(factor)
                plus_minus.append(loss(model.hf, IDS).item())
                for t, s in zip(tensors, saved, strict=True):
                    t.copy_(s)
        slope = -(plus_minus[0] - plus_minus[1]) / (2 * step)
        assert found[c.block, c.name] == pytest.approx(slope, rel=1e-3)


def test_taylor_signed_predicts_a_small_shrink() -> None:
    model = gpt2(torch.float64)
    target = model.select(["down_proj"])[0]
    predicted = measured(model, "down_proj", IDS)["taylor_signed"][0, "down_proj"] * 1e-3
    before = loss(model.hf, IDS).item()
    change = ablation_for("shrink:0.001", target)[1].change(model, target, Setting())
    with torch.no_grad(), change.edit():
        assert loss(model.hf, IDS).item() - before == pytest.approx(predicted, rel=2e-2)


def test_a_shared_parameter_has_one_gradient_that_counts_in_every_block() -> None:
    hf = tiny_llama()
    hf.model.layers[2].mlp.up_proj.weight = hf.model.layers[1].mlp.up_proj.weight
    model = kingpost.load_model(hf, device="cpu")
    found, product = measured(model, "up_proj", IDS)["taylor"], products(model, IDS)
    expected = np.abs(product["model.layers.1.mlp.up_proj.weight"]).sum()
    assert found[1, "up_proj"] == pytest.approx(expected, rel=1e-5)
    assert found[2, "up_proj"] == found[1, "up_proj"]


def test_a_parameter_that_no_gradient_reaches_has_no_number(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path
) -> None:
    tiny_model.blocks[0].spare = torch.nn.Linear(3, 3)
    study = kingpost.scan(tiny_model, tiny_text, tmp_path, ["*spare*"], measures=["fisher"])
    table = study.table().set_index("component")
    assert np.isnan(table.loc["spare", "value"])
    assert table.loc["spare", "note"] == "undefined: no gradient reaches it"


def test_the_model_is_left_as_it_was_also_when_it_fails() -> None:
    model = kingpost.load_model(tiny_llama(), device="cpu")
    odd = model.blocks[1].self_attn.q_proj.weight
    odd.requires_grad_(False)
    other = model.hf.lm_head.weight
    other.grad = torch.ones_like(other)
    before = {n: p.detach().clone() for n, p in model.hf.named_parameters()}

    def fail(parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        raise ZeroDivisionError

    for on_gradient in (lambda p, g: g.zero_(), fail):
        parameters = [odd, model.blocks[2].mlp.up_proj.weight]
        with contextlib.suppress(ZeroDivisionError):
            backward(model, IDS, parameters, on_gradient)
        for name, p in model.hf.named_parameters():
            assert torch.equal(p, before[name])
            assert p.requires_grad == (p is not odd)
            assert (p.grad is None) == (p is not other)


def test_gradients_are_freed_as_they_are_used() -> None:
    model = kingpost.load_model(tiny_llama(), device="cpu")
    parameters = list(model.hf.model.layers.parameters())
    held: list[weakref.ref] = []
    most = 0

    def watch(parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        nonlocal most
        gc.collect()
        most = max(most, sum(r() is not None for r in held))
        held.append(weakref.ref(gradient))

    backward(model, IDS, parameters, watch)
    assert len(held) == len(parameters)
    assert most <= 1


def test_a_scan_stores_one_number_a_sequence_and_its_loss(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path
) -> None:
    study = kingpost.scan(
        tiny_model, tiny_text, tmp_path, ["up_proj", "blocks"], measures=["taylor", "influence"]
    )
    observed = study.observations()
    assert (observed.groupby(["measure", "component", "block"])["value"].count() == 6).all()
    assert set(observed.query("measure == 'influence'")["component"]) == {"block"}
    for sequence, ids in enumerate(torch.from_numpy(tiny_text.token_ids)):
        expected = measured(tiny_model, "up_proj", ids[None])["taylor"]
        rows = observed.query(
            f"sequence == {sequence} and component == 'up_proj' and measure == 'taylor'"
        )
        assert rows["value"].tolist() == pytest.approx(list(expected.values()), rel=1e-6)
        base = study.sequences()["base_loss"][sequence]
        assert base == pytest.approx(float(loss(tiny_model.hf, ids[None]).detach()), abs=1e-5)
    recorded = kingpost.scan(
        tiny_model, tiny_text, tmp_path / "other", ["blocks"], measures=["influence"]
    )
    here, there = (
        s.table().query("measure == 'influence'")["value"].to_numpy() for s in (study, recorded)
    )
    np.testing.assert_allclose(here, there, rtol=1e-4)
