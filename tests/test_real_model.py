"""What is known to be true of SmolLM2-135M-Instruct, and of a model of Qwen3-4B's shape."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
import transformers

import kingpost
from tests_support import byte_tokenizer


def losses(model: kingpost.Model, ids: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        logits = model.hf(ids).logits.double()
    chosen = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
    return -chosen.squeeze(-1).mean(1).numpy()


def test_zero_on_attention_and_mlp_equals_a_hooked_forward(
    smollm2: kingpost.Model, tmp_path: Path
) -> None:
    text = kingpost.load_text(model=smollm2, n_sequences=2, length=32)
    study = kingpost.scan(smollm2, text, tmp_path, ["attn", "mlp"], "zero")
    observed = study.observations().set_index(["block", "component"])["value"].sort_index()
    ids = torch.from_numpy(text.token_ids)
    baseline = losses(smollm2, ids)

    def zeros(_: object, __: object, output: object) -> object:
        if isinstance(output, tuple):
            return (torch.zeros_like(output[0]), *output[1:])
        return torch.zeros_like(output)

    for block in (0, 1, 11, 29):
        layer = smollm2.blocks[block]
        for name, module in (("attn", layer.self_attn), ("mlp", layer.mlp)):
            handle = module.register_forward_hook(zeros)
            expected = losses(smollm2, ids) - baseline
            handle.remove()
            np.testing.assert_allclose(observed.loc[block, name], expected, atol=1e-5, rtol=0)


def test_taylor_orders_the_columns_as_published(smollm2: kingpost.Model, tmp_path: Path) -> None:
    text = kingpost.load_text(model=smollm2, n_sequences=4, length=256)
    study = kingpost.scan(smollm2, text, tmp_path, ["parameters"], measures=["taylor"])
    axes = kingpost.plot_heatmap(study)
    names = [label.get_text().rpartition(".")[2] for label in axes.get_xticklabels()]
    assert names == [
        *("down_proj", "up_proj", "gate_proj", "o_proj", "q_proj", "v_proj", "k_proj"),
        *("post_attention_layernorm", "input_layernorm"),
    ]


def test_a_model_of_qwen3_4b_s_shape_has_the_columns_of_the_published_figure(
    tmp_path: Path,
) -> None:
    config = transformers.Qwen3Config(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=36,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    hf = transformers.Qwen3ForCausalLM(config)
    model = kingpost.load_model(hf, tokenizer=byte_tokenizer(), device="cpu")
    made = kingpost.load_text(model=model, n_sequences=2, length=32)
    study = kingpost.scan(model, made, tmp_path, ["parameters"], measures=["taylor"])
    axes = kingpost.plot_heatmap(study)
    (image,) = axes.get_images()
    assert image.get_array().shape == (36, 11)
    assert not np.ma.is_masked(image.get_array())
    assert {label.get_text() for label in axes.get_xticklabels()} == {
        *("mlp.down_proj", "mlp.up_proj", "mlp.gate_proj", "self_attn.o_proj"),
        *("self_attn.q_proj", "self_attn.v_proj", "self_attn.k_proj", "input_layernorm"),
        *("post_attention_layernorm", "self_attn.k_norm", "self_attn.q_norm"),
    }
    layers = [int(t.get_text()) for t in axes.figure.axes[0].child_axes[0].get_yticklabels()]
    assert layers == list(range(0, 36, 2))
    totals = study.observations().groupby(["block", "sequence"])["value"].sum()
    assert isinstance(totals, pd.Series)
    importance = totals.groupby("block").mean()
    column = axes.figure.axes[0].child_axes[0].get_images()[0].get_array()[:, 0]
    np.testing.assert_allclose(column, importance / importance.max(), rtol=1e-6)
