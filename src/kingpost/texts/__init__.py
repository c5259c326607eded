"""A file, dataset or the built-in text -> documents -> sequences.

`sources` turns the name a user gives into documents (`files` and `hub` read them), `tokens` turns
documents into token ids, and `sequences` cuts, joins and draws.
"""

from kingpost.texts.sequences import Text, load_text

__all__ = ["Text", "load_text"]
