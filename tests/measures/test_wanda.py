"""wanda against the sum written out."""

from pathlib import Path

import numpy as np
import pytest
import torch

import kingpost


def test_wanda_is_the_sum_over_weights_and_input_norms(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    where = ["parameters", "attn"]
    study = kingpost.scan(tiny_model, tiny_text, tmp_path, where, measures=["wanda"], batch=4)
    found = study.observations().set_index(["component", "block", "sequence"])["value"]
    layer = tiny_model.hf.model.layers[2]
    inputs: dict[str, torch.Tensor] = {}
    names = {"mlp.down_proj": layer.mlp.down_proj, "self_attn.o_proj": layer.self_attn.o_proj}
    names |= {f"self_attn.{n}_proj": getattr(layer.self_attn, f"{n}_proj") for n in "qkv"}
    for name, module in names.items():
        module.register_forward_pre_hook(lambda _, args, name=name: inputs.update({name: args[0]}))
    with torch.no_grad():
        tiny_model.hf(torch.from_numpy(tiny_text.token_ids))
    for s in range(6):
        total = 0.0
        for name, module in names.items():
            x = inputs[name][s, :-1].double().numpy()
            weight = module.weight.detach().double().numpy()
            expected = (np.abs(weight) * np.sqrt((x**2).sum(0))[None, :]).sum()
            assert found[name, 2, s] == pytest.approx(expected, rel=1e-5)
            total += expected if "attn" in name else 0.0
        assert found["attn", 2, s] == pytest.approx(total, rel=1e-5)
    notes = study.table().set_index(["component", "block"])["note"]
    assert notes["input_layernorm", 0] == "undefined: not the weight of a linear layer"
    assert np.isnan(study.table().set_index(["component", "block"])["value"]["input_layernorm", 0])


def test_no_number_where_a_layer_sees_some_tokens_only() -> None:
    from kingpost.measures import InputNorms
    from tests_support import tiny_llama

    model = kingpost.load_model(tiny_llama(), device="cpu")
    norms = InputNorms(model, model.select(["up_proj"])[:1], n_sequences=2, length=5)
    with norms.watching():
        model.blocks[0].mlp.up_proj(torch.ones(7, 32))
    assert np.isnan(norms.values()).all()
