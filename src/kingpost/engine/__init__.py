"""How a forward pass is run: record, replay, token losses, and the check of all that."""

from kingpost.engine.batches import auto_batch as auto_batch
from kingpost.engine.batches import is_out_of_memory as is_out_of_memory
from kingpost.engine.check import checked_engine as checked_engine
from kingpost.engine.check import why_not_finite as why_not_finite
from kingpost.engine.engine import Engine as Engine
from kingpost.engine.engine import Recording as Recording
from kingpost.engine.gradients import backward as backward
from kingpost.engine.outputs import mean_outputs as mean_outputs
from kingpost.engine.outputs import outputs_of as outputs_of
from kingpost.engine.replay import OnBlock as OnBlock
