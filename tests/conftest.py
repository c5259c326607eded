"""What many tests need: a tiny model on disk, the same loaded, and a text."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Iterator

import pytest
import torch

import kingpost
from tests_support import save, tiny_llama


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tiny_llama(), tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def tiny_model(tiny_folder: str) -> kingpost.Model:
    return kingpost.load_model(tiny_folder, dtype="float32", device="cpu")


@pytest.fixture
def tiny_text(tiny_model: kingpost.Model) -> kingpost.Text:
    return kingpost.load_text(model=tiny_model, n_sequences=6, length=24)


@pytest.fixture(scope="session")
def smollm2() -> kingpost.Model:
    return kingpost.load_model(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models are slower with more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
