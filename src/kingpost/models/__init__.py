"""Models: from a name, a folder or a GGUF file to blocks, components and a tokenizer."""

from kingpost.models.component import Component as Component
from kingpost.models.component import Output as Output
from kingpost.models.component import Slice as Slice
from kingpost.models.devices import device_named as device_named
from kingpost.models.devices import dtype_named as dtype_named
from kingpost.models.devices import machine as machine
from kingpost.models.hidden import hidden_in as hidden_in
from kingpost.models.hidden import hidden_out as hidden_out
from kingpost.models.hidden import with_hidden as with_hidden
from kingpost.models.load import load_model as load_model
from kingpost.models.model import Model as Model
from kingpost.models.quiet import quiet as quiet
from kingpost.models.roles import add_rule as add_rule
from kingpost.models.structure import block_kinds as block_kinds
from kingpost.models.structure import shared_blocks as shared_blocks
