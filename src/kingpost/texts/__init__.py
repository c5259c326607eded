"""A file, dataset or the built-in text -> documents -> sequences.

`sources` turns the name a user gives into documents (`files` and `hub` read them), `tokens` turns
documents into token ids, and `sequences` cuts, joins and draws.
"""

from kingpost.texts.documents import Document
from kingpost.texts.sequences import Text, load_text
from kingpost.texts.sources import PYTHON_LIBRARY, counted, read_documents
from kingpost.texts.tokens import Encoder

__all__ = [
    "PYTHON_LIBRARY",
    "Document",
    "Encoder",
    "Text",
    "counted",
    "load_text",
    "read_documents",
]
