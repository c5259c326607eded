"""Models: from a name, a folder or a GGUF file to blocks, components and a tokenizer."""

from kingpost.models.load import load_model as load_model
from kingpost.models.model import Model as Model
from kingpost.models.structure import Component as Component
from kingpost.models.structure import block_kinds as block_kinds
from kingpost.models.structure import shared_blocks as shared_blocks
