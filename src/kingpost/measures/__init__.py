"""Measures: the numbers that are computed for a site, one for each sequence."""

from kingpost.measures.ablation import delta_loss as delta_loss
from kingpost.measures.ablation import mean_loss as mean_loss
from kingpost.measures.hidden import HIDDEN_MEASURES as HIDDEN_MEASURES
from kingpost.measures.hidden import HiddenStates as HiddenStates

MEASURES = ("ablation", *HIDDEN_MEASURES)
