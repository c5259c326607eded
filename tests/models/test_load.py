"""Loading: what is found in a model, and one sentence for everything that is no model."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import kingpost
from kingpost.errors import KingpostError, UsageError
from tests_support import byte_tokenizer, save, tiny_llama


@pytest.fixture
def folder(tiny_folder: str, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def test_a_folder_gives_blocks_and_components(tiny_model: kingpost.Model) -> None:
    assert tiny_model.blocks_path == "model.layers"
    assert len(tiny_model.blocks) == 4
    assert tiny_model.blocks[2] is tiny_model.hf.model.layers[2]
    expected = {
        (i, name.removesuffix(".weight"), tuple(p.shape))
        for i, block in enumerate(tiny_model.hf.model.layers)
        for name, p in block.named_parameters()
    }
    found = {
        (c.block, c.name, tuple(tiny_model.blocks[c.block].get_parameter(s.parameter).shape))
        for c in tiny_model.parameters()
        for s in c.slices
    }
    assert found == expected
    assert not tiny_model.hf.training


def test_dtype_and_device(tiny_folder: str) -> None:
    assert kingpost.load_model(tiny_folder, dtype="bfloat16").dtype == torch.bfloat16
    with pytest.raises(UsageError, match="Unknown dtype 'int4': give auto, float32 or bfloat16"):
        kingpost.load_model(tiny_folder, dtype="int4")
    with pytest.raises(UsageError, match="Device 'abacus' cannot be used here"):
        kingpost.load_model(tiny_folder, device="abacus")


def test_a_model_in_memory_can_be_handed_over() -> None:
    hf = tiny_llama()
    model = kingpost.load_model(hf, tokenizer=byte_tokenizer())
    assert model.hf is hf
    assert model.dtype == torch.float32
    assert model.source == ""


def test_tied_weights_count_once(tmp_path: Path) -> None:
    model = kingpost.load_model(save(tiny_llama(tie_word_embeddings=True), tmp_path / "tied"))
    assert model.tied_head
    storage = {p.data_ptr(): p.numel() for p in model.hf.parameters()}
    assert model.n_parameters == sum(storage.values())


def test_weights_hash_sees_one_flipped_bit(tiny_folder: str) -> None:
    first, second = (kingpost.load_model(tiny_folder, dtype="float32") for _ in range(2))
    with torch.no_grad():
        row = second.hf.model.layers[3].mlp.up_proj.weight[0]
        row[0] = torch.nextafter(row[0], torch.tensor(9.0))
    assert first.weights_hash != second.weights_hash
    again = kingpost.load_model(tiny_folder, dtype="float32")
    assert again.weights_hash == first.weights_hash


def test_blocks_are_the_longest_outermost_list() -> None:
    hf = tiny_llama()
    # Six experts inside a block are a longer list than four blocks, but not an outermost one.
    hf.model.layers[0].mlp.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(6))
    assert kingpost.load_model(hf).blocks_path == "model.layers"


def test_a_module_without_blocks_is_refused() -> None:
    hf = tiny_llama()
    hf.model.layers = nn.Sequential(*hf.model.layers)
    with pytest.raises(KingpostError, match="holds no list of blocks"):
        kingpost.load_model(hf)


def test_what_is_no_model_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no model folder: it has no config\.json"):
        kingpost.load_model(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"is a file; give the folder that holds config\.json"):
        kingpost.load_model(tmp_path / "weights.bin")
    with pytest.raises(UsageError, match="There is no GGUF file at"):
        kingpost.load_model(tmp_path / "no.gguf")
    with pytest.raises(KingpostError, match="cannot be loaded as a causal language model"):
        kingpost.load_model("no-such-owner/no-such-model")


def test_a_truncated_checkpoint(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(KingpostError, match="is damaged"):
        kingpost.load_model(folder)


def test_a_checkpoint_that_lacks_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(KingpostError, match=r"lacks 1 tensors .* model\.layers\.1\.mlp\.up_proj"):
        kingpost.load_model(folder)


def test_broken_configuration(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "no-such-architecture"}')
    with pytest.raises(KingpostError, match="cannot be loaded as a causal language model"):
        kingpost.load_model(folder)


def test_a_missing_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(KingpostError, match="has no usable tokenizer"):
        kingpost.load_model(folder)


def test_a_tokenizer_larger_than_the_embedding(folder: Path) -> None:
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] |= {f"extra{i}": 256 + i for i in range(10)}
    file.write_text(json.dumps(content))
    with pytest.raises(KingpostError, match="has 266 entries but its embedding only 256 rows"):
        kingpost.load_model(folder)


def test_remote_code_does_not_run_unless_asked_for(folder: Path, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(proof)!r}, 'w').close()\nclass Evil: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(KingpostError, match="cannot be loaded"):
        kingpost.load_model(folder)
    assert not proof.exists()


class TestGguf:
    """The built-in model: a real GGUF file."""

    def test_it_is_found_and_said_to_be_dequantised(self, smollm2: kingpost.Model) -> None:
        assert smollm2.name == "SmolLM2-135M-Instruct"
        assert smollm2.n_parameters == 134_515_008
        assert len(smollm2.blocks) == 30
        assert any("dequantised" in note for note in smollm2.notes)

    def test_dequantised_values_are_those_of_the_gguf_package(
        self, smollm2: kingpost.Model
    ) -> None:
        import gguf

        from kingpost.models.load import _demo_file

        tensors = {t.name: t for t in gguf.GGUFReader(_demo_file()).tensors}
        tensor = tensors["blk.7.ffn_down.weight"]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        ours = smollm2.hf.model.layers[7].mlp.down_proj.weight
        assert torch.equal(ours, torch.from_numpy(values))

    def test_a_damaged_cache_is_made_again(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, smollm2: kingpost.Model
    ) -> None:
        monkeypatch.setenv("KINGPOST_CACHE", str(tmp_path))
        kingpost.load_model(dtype="float32")
        (weights,) = tmp_path.rglob("model.safetensors")
        intact = hashlib.sha256(weights.read_bytes()).hexdigest()
        with weights.open("r+b") as stream:
            stream.seek(1_000_000)
            stream.write(b"\xff" * 16)
        assert kingpost.load_model(dtype="float32").weights_hash == smollm2.weights_hash
        assert hashlib.sha256(weights.read_bytes()).hexdigest() == intact

    def test_a_file_that_is_no_gguf(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("KINGPOST_CACHE", str(tmp_path / "cache"))
        (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\0" * 500)
        with pytest.raises(KingpostError, match="cannot be read as a GGUF model"):
            kingpost.load_model(tmp_path / "bad.gguf")
