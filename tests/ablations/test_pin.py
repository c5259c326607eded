"""pin on gated delta layers: what decay and write strength become, seen where they are used."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import kingpost
from architectures.configs import build
from kingpost.ablations import Setting, ablation_for

TYPES = ["olmo_hybrid", "qwen3_next", "qwen3_5_text", "kimi_linear"]


@contextmanager
def gates(model: kingpost.Model) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """(decay, write strength) of each call of the delta rule, taken where the model gives them."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    module = sys.modules[type(model.hf).__module__]
    names = [n for n in dir(module) if "chunk" in n and "delta" in n]
    assert names
    with pytest.MonkeyPatch.context() as patched:
        for name in names:
            rule = getattr(module, name)

            def watched(*args, rule=rule, **kwargs):
                seen.append((kwargs["g"].exp(), kwargs["beta"]))
                return rule(*args, **kwargs)

            patched.setattr(module, name, watched)
            for layer in model.hf.modules():
                for attribute, value in list(vars(layer).items()):
                    if value is rule:
                        patched.setattr(layer, attribute, watched)
        yield seen


def gates_within(model: kingpost.Model, name: str, ablation: str) -> tuple[torch.Tensor, ...]:
    target = model.select([name])[0]
    change = ablation_for(ablation, target)[1].change(model, target, Setting())
    ids = torch.arange(40).reshape(2, 20)
    with torch.no_grad(), change.edit(), gates(model) as seen:
        logits = model.hf(ids, use_cache=False).logits
    assert bool(torch.isfinite(logits).all())
    return (*seen[0], logits)


@pytest.mark.parametrize("model_type", TYPES)
def test_pin_and_zero_differ_as_they_should(model_type: str) -> None:
    model = kingpost.load_model(build(model_type), device="cpu")
    doubled = model_type == "olmo_hybrid"  # negative eigenvalues: beta goes up to 2
    kept, _, _ = gates_within(model, "alpha", "pin:1")
    assert (kept == 1).all()
    forgotten, _, logits = gates_within(model, "alpha", "pin:0")
    assert (forgotten == 0).all()
    constant, _, logits_zero = gates_within(model, "alpha", "zero")
    assert ((constant > 0) & (constant < 1)).all()
    assert torch.equal(constant[:, :1].expand_as(constant), constant), "the decay is no constant"
    assert not torch.equal(logits, logits_zero)
    _, written, _ = gates_within(model, "beta", "pin:1")
    assert (written == 1).all()
    _, unwritten, _ = gates_within(model, "beta", "pin:0")
    assert (unwritten == 0).all()
    _, half, _ = gates_within(model, "beta", "zero")
    assert (half == (1.0 if doubled else 0.5)).all()
