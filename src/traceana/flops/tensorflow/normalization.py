"""TensorFlow's normalizations and softmax."""

from __future__ import annotations

from traceana.flops.call import Call
from traceana.flops.model import Cost, UncountableError
from traceana.flops.neutral.normalization import (
    Normalized,
    batch_backward,
    inference,
    local_response,
    local_response_backward,
    training,
)
from traceana.flops.neutral.softmax import softmax, softmax_cross_entropy
from traceana.flops.registry import operator


@operator("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(call: Call) -> tuple[Cost, ...]:
    """Image, gamma, beta, mean, variance; the last two are empty in plain training."""
    gamma = call.elements(1)
    x = Normalized(call.elements(0), gamma, gamma, call.size(0), call.size(1))
    trained = call.training
    if trained is None and call.has(3) and call.shape(3) == (0,):
        trained = True
    if trained is None:
        # Running averages are given in training too.
        raise UncountableError("whether it was training was not recorded")
    return ((training if trained else inference)(x, "batch_norm"),)


@operator("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def batch_norm_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, image, gamma, and what was kept of the forward pass."""
    gamma = call.elements(2)
    x = Normalized(call.elements(1), gamma, gamma, call.size(1), call.size(2))
    return (batch_backward(x, "batch_norm", call.training is not False),)


@operator("Softmax", "LogSoftmax")
def soft(call: Call) -> tuple[Cost, ...]:
    """A tensor."""
    log = call.name == "LogSoftmax"
    return (softmax(call.elements(0), call.size(0), call.size(0), log=log),)


@operator("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
def cross_entropy(call: Call) -> tuple[Cost, ...]:
    """Logits [N, classes] and labels: classes, or a distribution over them; loss and gradient."""
    samples, classes = call.shape(0, 2)
    sparse = call.name.startswith("Sparse")
    return (softmax_cross_entropy(samples, classes, call.size(0), call.operand(1), sparse=sparse),)


@operator("LRN")
def lrn(call: Call) -> tuple[Cost, ...]:
    """Image; how many channels are summed from beside the call."""
    return (local_response(call.elements(0), _neighbours(call), call.size(0)),)


@operator("LRNGrad")
def lrn_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, image, output; how many channels are summed from beside the call."""
    return (local_response_backward(call.elements(1), _neighbours(call), call.size(1)),)


def _neighbours(call: Call) -> int:
    if call.window is None or len(call.window) != 1:
        raise UncountableError("how many channels are summed was not recorded")
    return call.window[0]
