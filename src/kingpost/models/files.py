"""The tensors of a checkpoint, read from its safetensors files one at a time."""

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils.hub import cached_file

from kingpost.errors import KingpostError

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class TensorFiles:
    """Tensors by name, each read when it is asked for.

    Args:
        source: A local folder or a Hub id.

    Raises:
        KingpostError: There are no safetensors files, or they cannot be read.
    """

    def __init__(self, source: str) -> None:
        index = _locate(source, _INDEX)
        if index is not None:
            names = json.loads(index.read_text())["weight_map"]
            self._files = {name: _present(source, file) for name, file in names.items()}
            return
        single = _present(source, _SINGLE)
        with _opened(single) as stored:
            self._files = dict.fromkeys(stored.keys(), single)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU, in the dtype of the file."""
        file = self._files[name]
        try:
            with _opened(file) as stored:
                return stored.get_tensor(name)  # type: ignore[no-any-return]
        except SafetensorError as error:
            raise KingpostError(
                f"The safetensors file {file} is damaged ({error}); copy or download it again."
            ) from error


def _opened(file: Path) -> "safe_open":
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise KingpostError(
            f"The safetensors file {file} cannot be read ({error}); copy or download it again."
        ) from error


def _present(source: str, name: str) -> Path:
    file = _locate(source, name)
    if file is None:
        raise KingpostError(
            f"{source} has no {name}: measures of the weights alone are read from safetensors "
            "files; save the model with save_pretrained."
        )
    return file


def _locate(source: str, name: str) -> Path | None:
    if os.path.isdir(source):
        file = Path(source, name)
        return file if file.is_file() else None
    found = cached_file(
        source,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(found) if found else None
