"""The D8, D12 and D16 family: configurations, tokenizer, training."""

from kingpost.reference.family import FAMILY, build
from kingpost.reference.progress import TrainProgress
from kingpost.reference.training import train

__all__ = ["FAMILY", "TrainProgress", "build", "train"]
