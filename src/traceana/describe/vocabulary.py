"""The types of layers, one vocabulary for all frameworks.

The words are PyTorch's class names where it has the layer (``Conv2d``, ``BatchNorm2d``, ``GELU``),
with ``LRN`` for local response normalization, and a few that it has none for
(``SeparableConv2d``, ``Add``, ``Concatenate``).
"""

from __future__ import annotations

import re
from typing import Final

_IMAGES: Final = re.compile(
    r"^(?:Lazy)?(?:Separable)?(?:Conv|ConvTranspose|MaxPool|AvgPool|LPPool|FractionalMaxPool|"
    r"AdaptiveAvgPool|AdaptiveMaxPool|MaxUnpool|BatchNorm|InstanceNorm|Dropout|ZeroPad|"
    r"ConstantPad|ReflectionPad|ReplicationPad|CircularPad|Crop)[123]d$|"
    r"^(?:LRN|GroupNorm|SyncBatchNorm|Flatten|Upsample|PixelShuffle|PixelUnshuffle)$"
)
"""Types whose inputs of rank 3 and more are images: batch, channels, spatial axes."""

_FEATURES_LAST: Final = frozenset(
    (
        *("Linear", "Bilinear", "Matmul", "EinsumDense", "Embedding", "MultiheadAttention"),
        *("LayerNorm", "RMSNorm", "Softmax", "LSTM", "GRU", "RNN"),
    )
)
"""Types that every framework applies to the last axis, or to sequences with features last."""


def has_images(type_: str, rank: int) -> bool:
    """Tell whether a tensor of ``rank`` at a layer of this type is an image.

    Layers that take any tensor, such as activations, are taken to have images from rank 4 on.
    """
    if _IMAGES.match(type_):
        return rank >= 3
    return type_ not in _FEATURES_LAST and rank >= 4


ACTIVATIONS: Final = {
    "relu": "ReLU",
    "relu6": "ReLU6",
    "leaky_relu": "LeakyReLU",
    "elu": "ELU",
    "selu": "SELU",
    "celu": "CELU",
    "gelu": "GELU",
    "silu": "SiLU",
    "swish": "SiLU",
    "mish": "Mish",
    "sigmoid": "Sigmoid",
    "hard_sigmoid": "Hardsigmoid",
    "hard_silu": "Hardswish",
    "hard_swish": "Hardswish",
    "tanh": "Tanh",
    "hard_tanh": "Hardtanh",
    "softplus": "Softplus",
    "soft_sign": "Softsign",
    "softsign": "Softsign",
    "softmax": "Softmax",
    "log_softmax": "LogSoftmax",
    "linear": "Identity",
}
"""Names of activation functions in Keras and JAX, and the types of layers that apply them."""

PARAMETERS: Final = {
    "kernel": "weight",
    "depthwise_kernel": "weight",
    "embeddings": "weight",
    "embedding": "weight",
    "gamma": "weight",
    "scale": "weight",
    "beta": "bias",
}
"""Keras' and Flax' names of parameters, and PyTorch's."""
