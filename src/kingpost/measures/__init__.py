"""Measures: the numbers that are computed for a site, one for each sequence where there is one."""

from kingpost.measures.ablation import delta_loss as delta_loss
from kingpost.measures.ablation import mean_loss as mean_loss
from kingpost.measures.gradients import GRADIENT_MEASURES as GRADIENT_MEASURES
from kingpost.measures.gradients import GradientSums as GradientSums
from kingpost.measures.hidden import HIDDEN_MEASURES as HIDDEN_MEASURES
from kingpost.measures.hidden import HiddenStates as HiddenStates
from kingpost.measures.wanda import InputNorms as InputNorms
from kingpost.measures.weights import WEIGHT_MEASURES as WEIGHT_MEASURES
from kingpost.measures.weights import check_weight_measure as check_weight_measure
from kingpost.measures.weights import weight_values as weight_values

MEASURES = ("ablation", *HIDDEN_MEASURES, *GRADIENT_MEASURES, "wanda", *WEIGHT_MEASURES)
