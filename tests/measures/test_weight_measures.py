"""Measures of the weights alone against numpy, in memory and from the files."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import kingpost
from kingpost.errors import UsageError
from tests_support import save, tiny_llama

MEASURES = ["magnitude", "magnitude_mean", "snr", "quantization_error:3:8"]


def spectrum_snr(matrix: np.ndarray) -> float:
    """Spectrum's signal-to-noise ratio from singular values (arXiv 2406.06623)."""
    singular = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    sigma = (np.quantile(singular, 0.75) - np.quantile(singular, 0.25)) / 1.349
    beta = min(matrix.shape) / max(matrix.shape)
    edge = sigma * (1 + np.sqrt(beta))
    signal, noise = singular[singular > edge].sum(), singular[singular <= edge].sum()
    return float(signal / noise / singular[0])


def relative_error(matrix: np.ndarray, bits: int, group: int) -> float:
    rounded = np.empty(matrix.shape)
    for start in range(0, matrix.shape[1], group):
        part = matrix[:, start : start + group].astype(np.float64)
        step = np.abs(part).max(1, keepdims=True) / (2 ** (bits - 1) - 1)
        rounded[:, start : start + group] = np.round(part / step) * step
    return float(np.linalg.norm(matrix - rounded) / np.linalg.norm(matrix))


def test_values(tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path) -> None:
    study = kingpost.scan(tiny_model, tiny_text, tmp_path, ["parameters", "mlp"], measures=MEASURES)
    table = study.table().set_index(["measure", "component", "block"])
    value = table["value"]
    for block, layer in enumerate(tiny_model.hf.model.layers):
        for name, parameter in layer.named_parameters():
            w, key = parameter.detach().numpy(), (name.removesuffix(".weight"), block)
            assert value["magnitude", *key] == pytest.approx(np.sqrt((w**2).sum()), rel=1e-6)
            assert value["magnitude_mean", *key] == pytest.approx(np.abs(w).mean(), rel=1e-6)
            if w.ndim == 2:
                assert value["snr", *key] == pytest.approx(spectrum_snr(w), rel=1e-6)
                error = relative_error(w, 3, 8)
                assert value["quantization_error:3:8", *key] == pytest.approx(error, rel=1e-5)
            else:
                assert np.isnan(value["snr", *key])
                assert table.loc[("snr", *key), "note"] == "undefined: not a single matrix"
                assert np.isnan(value["quantization_error:3:8", *key])
        mlp = np.concatenate([p.detach().numpy().ravel() for p in layer.mlp.parameters()])
        assert value["magnitude", "mlp", block] == pytest.approx(np.linalg.norm(mlp), rel=1e-6)
        assert np.isnan(value["snr", "mlp", block])
    known = table[table["value"].notna()]
    assert (known["note"] == "from the weights alone: no sampling error").all()
    assert (table["n_sequences"] == 0).all()
    assert table["se"].isna().all()


def test_weights_in_the_files_give_the_same_study(
    tiny_folder: str, tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    in_files = kingpost.load_model(tiny_folder, dtype="float32", device="meta")
    assert all(p.is_meta for p in in_files.hf.parameters())
    assert in_files.weights_hash == tiny_model.weights_hash
    kingpost.scan(tiny_model, tiny_text, tmp_path, ["q_proj"])
    study = kingpost.scan(in_files, tiny_text, tmp_path, ["parameters"], measures=MEASURES)
    in_memory = kingpost.scan(
        tiny_model, tiny_text, tmp_path / "memory", ["parameters"], measures=MEASURES
    )
    here = study.table().query("measure != 'ablation'").reset_index(drop=True)
    assert here.equals(in_memory.table())
    with pytest.raises(UsageError, match="was loaded without its weights"):
        kingpost.scan(in_files, tiny_text, tmp_path, ["q_proj"])


def test_a_model_that_is_read_from_its_files_never_is_in_memory_as_a_whole(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=1024, intermediate_size=4096, num_hidden_layers=6,
        num_attention_heads=8, num_key_value_heads=8, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    folder = save(transformers.LlamaForCausalLM(config), tmp_path / "model")
    size = sum(f.stat().st_size for f in Path(folder).glob("*.safetensors"))
    code = f"""
import resource, sys, kingpost
model = kingpost.load_model({folder!r}, dtype="float32", device=sys.argv[1])
text = kingpost.load_text(model=model, n_sequences=1, length=8)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
import torch, scipy.stats, pandas
before = peak()
kingpost.scan(model, text, {str(tmp_path)!r} + "/" + sys.argv[1], ["parameters"],
              measures=["magnitude"])
print(peak() - before)
"""
    run = subprocess.run(
        [sys.executable, "-c", code, "meta"], capture_output=True, text=True, check=True
    )
    assert size > 380e6
    # Pages of the mapped file are shared and let go again: some tensors, by far not all.
    assert int(run.stdout) < size / 2


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ("quantization_error:x", "write quantization_error:bits"),
        ("quantization_error:4:0", "write quantization_error:bits"),
        ("quantization_error:1", "with 2 bits or more"),
        ("quantization_error:4:8:2", "write quantization_error:bits"),
        ("snr:2", "snr takes no argument"),
        ("taylor:2", "taylor takes no argument"),
        ("tailor", "Unknown measure 'tailor': there is ablation, influence, angular, taylor"),
        ("influence", "influence is a measure of whole blocks: add --where blocks"),
    ],
)
def test_measures_that_make_no_sense_are_refused(
    tiny_model: kingpost.Model, measure: str, message: str
) -> None:
    from kingpost.scanning import targets

    with pytest.raises(UsageError, match=message):
        targets(tiny_model, ["q_proj"], "auto", [measure])


def test_snr_of_stacked_experts_is_the_mean() -> None:
    from kingpost.measures.weights import _snr

    torch.manual_seed(0)
    experts = torch.randn(3, 12, 20)
    mean = np.mean([spectrum_snr(e.numpy()) for e in experts])
    assert _snr(experts) == (pytest.approx(mean, rel=1e-6), 1.0)


def test_an_unusual_model_is_loaded_instead(tmp_path: Path) -> None:
    assert tiny_llama().config.model_type == "llama"
    from architectures.configs import build

    folder = save(build("mixtral"), tmp_path / "mixtral")
    with pytest.raises(kingpost.KingpostError, match="in another form than the model holds it"):
        kingpost.load_model(folder, device="meta")
