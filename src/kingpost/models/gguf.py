"""GGUF files: dequantised once into a Hugging Face folder in the user's cache."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path

import platformdirs
import torch
import transformers

from kingpost.errors import KingpostError, first_line
from kingpost.models.quiet import quiet

logger = logging.getLogger(__name__)

_CHECKSUMS = "kingpost-checksums.json"


def dequantised_folder(file: Path) -> Path:
    """A folder with the float32 weights and the tokenizer that a GGUF file holds.

    The first call writes it; later calls check every file of it by hash, and write it again where
    a hash differs. It is safe to delete.

    Raises:
        KingpostError: The file is no readable GGUF file, or the cache cannot be written.
    """
    folder = _cache() / _key(file)
    if _is_intact(folder):
        return folder
    if folder.exists():
        logger.warning("The cached copy of %s is damaged; it is made again.", file.name)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            unfinished = Path(temporary) / "model"
            _dequantise(file, unfinished)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(unfinished, folder)
    except OSError as error:
        raise KingpostError(
            f"The dequantised copy of {file.name} cannot be written to {folder.parent}: "
            f"{error.strerror or error}; make room there or set KINGPOST_CACHE to another folder."
        ) from error
    return folder


def _cache() -> Path:
    root = os.environ.get("KINGPOST_CACHE") or platformdirs.user_cache_dir("kingpost")
    return Path(root) / "dequantised"


def _key(file: Path) -> str:
    # Another transformers may dequantise in another way, so its version is part of the key.
    return f"{_sha256(file)[:24]}-transformers-{transformers.__version__}"


def _is_intact(folder: Path) -> bool:
    try:
        expected = json.loads((folder / _CHECKSUMS).read_text())
        return all(_sha256(folder / name) == digest for name, digest in expected.items())
    except (OSError, ValueError, AttributeError):
        return False


def _dequantise(file: Path, folder: Path) -> None:
    try:
        source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        with quiet():
            model = transformers.AutoModelForCausalLM.from_pretrained(
                **source,
                dtype=torch.float32,
                quantization_config=transformers.GgufConfig(dequantize=True),
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    except (ValueError, KeyError, IndexError, RuntimeError, NotImplementedError) as error:
        raise KingpostError(
            f"{file} cannot be read as a GGUF model: {first_line(error)}; "
            "give a complete file of an architecture that transformers can dequantise."
        ) from error
    # The weights are plain from here on: a loader must not take them for packed ones.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    checksums = {p.name: _sha256(p) for p in sorted(folder.iterdir())}
    (folder / _CHECKSUMS).write_text(json.dumps(checksums, indent=1))


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
