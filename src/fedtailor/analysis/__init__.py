"""How far the server's data are from the clients', and clients' from each other."""

from fedtailor.analysis.conditions import Condition, Conditions, fsl_conditions
from fedtailor.analysis.gradients import GradientGaps, gradient_gaps
from fedtailor.analysis.heterogeneity import (
    Distances,
    diversity_by_transport,
    diversity_by_variation,
    example_distances,
    label_distances,
)
from fedtailor.analysis.similarity import ImageSimilarity, mean_image_ssim, ssim
from fedtailor.analysis.smoothness import smoothness
from fedtailor.analysis.transport import directions, sliced_wasserstein, wasserstein
from fedtailor.data.picture import total_variation

__all__ = [
    "Condition",
    "Conditions",
    "Distances",
    "GradientGaps",
    "ImageSimilarity",
    "directions",
    "diversity_by_transport",
    "diversity_by_variation",
    "example_distances",
    "fsl_conditions",
    "gradient_gaps",
    "label_distances",
    "mean_image_ssim",
    "sliced_wasserstein",
    "smoothness",
    "ssim",
    "total_variation",
    "wasserstein",
]
