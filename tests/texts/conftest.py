import pytest
from text_models import FakeModel, byte_level, model_of


@pytest.fixture(scope="session")
def plain_model() -> FakeModel:
    return model_of(byte_level())


@pytest.fixture(scope="session")
def bos_model() -> FakeModel:
    return model_of(byte_level(bos=True, eos=True))
