"""Distances between the server's and the clients' data and gradients, and FSL's conditions."""

from fedtailor.data.label_table import total_variation
from fedtailor.inspection.statistics.fsl_conditions import (
    Condition,
    Conditions,
    StepSizes,
    check_fsl_conditions,
)
from fedtailor.inspection.statistics.gradients import GradientGaps, compute_gradient_gaps
from fedtailor.inspection.statistics.heterogeneity import (
    Distances,
    compute_example_distances,
    compute_label_distances,
    diversity_from_total_variation,
    diversity_from_wasserstein,
)
from fedtailor.inspection.statistics.image_similarity import ImageSimilarity, mean_image_ssim, ssim
from fedtailor.inspection.statistics.optimal_transport import (
    sample_directions,
    sliced_wasserstein,
    wasserstein,
)
from fedtailor.inspection.statistics.smoothness import estimate_smoothness

__all__ = [
    "Condition",
    "Conditions",
    "Distances",
    "GradientGaps",
    "ImageSimilarity",
    "StepSizes",
    "check_fsl_conditions",
    "compute_example_distances",
    "compute_gradient_gaps",
    "compute_label_distances",
    "diversity_from_total_variation",
    "diversity_from_wasserstein",
    "estimate_smoothness",
    "mean_image_ssim",
    "sample_directions",
    "sliced_wasserstein",
    "ssim",
    "total_variation",
    "wasserstein",
]
