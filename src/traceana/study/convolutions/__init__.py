"""Convolution algorithms by batch and by layer (Kim et al. 2017, Figures 8 and 9)."""

from __future__ import annotations

from traceana.study.convolutions.by_batch import algorithms_study
from traceana.study.convolutions.by_layer import layerwise_study

__all__ = ["algorithms_study", "layerwise_study"]
