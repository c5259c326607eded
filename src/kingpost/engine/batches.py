"""How many sequences go through the model at once."""

import psutil
import torch

from kingpost.engine.replay import record
from kingpost.models import Model

# Tokens per forward pass: what fits a CPU's cache is fastest there; an accelerator wants more.
_TOKENS_ON_CPU, _TOKENS_ELSEWHERE = 1024, 4096
# Of the memory that is free, what the recorded hidden states and the work beside them may take.
_SHARE = 0.5
# Activations of one forward pass beside the tape, in units of one recorded hidden state.
_WORK = 24
# Tokens that the tape is sized with.
_PROBE = 64


def auto_batch(model: Model, ids: torch.Tensor) -> int:
    """Sequences per batch: enough tokens to be fast, few enough for the memory that is free.

    The tape is sized by recording a few tokens.

    Args:
        model: The model.
        ids: Token ids of the scan, int64 [N, T].
    """
    length = ids.shape[1]
    _, tape = record(model, ids[:1, :_PROBE].to(model.device))
    tape_bytes = tape.nbytes * length / min(_PROBE, length)
    per_sequence = tape_bytes * (1 + _WORK / max(1, len(tape.blocks)))
    fits = int(_SHARE * free_memory(model.device) / per_sequence)
    tokens = _TOKENS_ON_CPU if model.device.type == "cpu" else _TOKENS_ELSEWHERE
    return max(1, min(tokens // length, fits))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of torch means that memory ran out, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def free_memory(device: torch.device) -> int:
    """Bytes of memory that are free where the model computes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)
