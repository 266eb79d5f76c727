"""The registries of formulas and of the operators that use them.

:data:`FORMULAS` has the framework-neutral formulas by id (``convolution.wgrad``): functions of
extents, with the derivation in the docstring. :data:`OPERATORS` has, by the name of an operator
(``aten::convolution_backward``, ``Conv2DBackpropFilter``), the reader that finds the extents among
its inputs and calls a formula. A name or an id that is registered twice raises ``ValueError`` at
import.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, TypeAlias, TypeVar

import msgspec

from traceana.flops.call import Call, is_complex
from traceana.flops.cost import Cost, Refusal, UncountableError

Reader: TypeAlias = Callable[[Call], tuple[Cost, ...]]
_F = TypeVar("_F", bound=Callable[..., object])

FAMILIES: Final = (
    "traceana.flops.attention",
    "traceana.flops.aten_convolution",
    "traceana.flops.convolution",
    "traceana.flops.elementwise",
    "traceana.flops.matmul",
    "traceana.flops.data_movement",
    "traceana.flops.normalization",
    "traceana.flops.pooling",
    "traceana.flops.recurrent",
    "traceana.flops.reduction",
    "traceana.flops.triton_templates",
)
"""The modules whose import fills :data:`OPERATORS`."""

_MORE: Final = ("traceana.flops.executed", "traceana.flops.hlo")
"""Modules with formulas that no framework's operator uses directly."""


class Formula(msgspec.Struct, frozen=True):
    """A framework-neutral formula: its id and its derivation, whose first line is a summary."""

    id: str
    text: str

    @property
    def summary(self) -> str:
        """Return the first line of the derivation."""
        return self.text.partition("\n")[0]


FORMULAS: Final[dict[str, Formula]] = {}
OPERATORS: Final[dict[str, Reader]] = {}


def declare(formula_id: str, text: str) -> str:
    """Register a formula's derivation and return its id; raises ``ValueError`` for a second one."""
    if formula_id in FORMULAS:
        raise ValueError(f"formula {formula_id} is registered twice")
    if not text.strip():
        raise ValueError(f"formula {formula_id} has no derivation")
    FORMULAS[formula_id] = Formula(formula_id, inspect.cleandoc(text))
    return formula_id


def formula(formula_id: str) -> Callable[[_F], _F]:
    """Return a decorator that registers a function's docstring as derivation of ``formula_id``."""

    def register(function: _F) -> _F:
        declare(formula_id, function.__doc__ or "")
        return function

    return register


def operator(*names: str) -> Callable[[Reader], Reader]:
    """Return a decorator that registers a reader for the operators ``names``.

    Raises ``ValueError`` where a name already has a reader.
    """

    def register(reader: Reader) -> Reader:
        for name in names:
            if name in OPERATORS:
                raise ValueError(f"operator {name} is registered twice")
            OPERATORS[name] = reader
        return reader

    return register


TEMPLATE: Final = "triton_tem_"
"""The beginning of the names of kernels that Inductor generates from a template; their reader is
registered under it."""


@cache
def operators() -> dict[str, Reader]:
    """Return all readers by operator; imports their modules."""
    for module in FAMILIES:
        importlib.import_module(module)
    return OPERATORS


def formulas() -> dict[str, Formula]:
    """Return all formulas by id; imports their modules."""
    operators()
    for module in _MORE:
        importlib.import_module(module)
    return FORMULAS


def reader_of(name: str) -> Reader | None:
    """Return the reader of the operator ``name``, if there is one."""
    return operators().get(TEMPLATE if name.startswith(TEMPLATE) else name)


_COMPLEX: Final = 4
"""Operations of a complex multiply-accumulate for each of a real one: 8 for 2."""

NO_FORMULA: Final = "no FLOP formula for this operator"


def cost(call: Call) -> tuple[Cost, ...] | Refusal:
    """Return the costs of the parts of ``call``, or the refusal.

    Where there are more inputs than the operator has (TorchScript records its whole stack), the
    last ones count.
    """
    reader = reader_of(call.name)
    if reader is None:
        return Refusal(NO_FORMULA)
    most = MOST_INPUTS.get(call.name)
    if most is None or len(call.shapes) <= most:
        return _read(reader, call)
    own = _read(reader, call.inputs(slice(-most, None)))
    if len(call.shapes) > most + 1:
        return own
    # An additional input may also be the output tensor, which comes last.
    before = _read(reader, call.inputs(slice(most)))
    if isinstance(own, Refusal) or isinstance(before, Refusal):
        return before if isinstance(own, Refusal) else own
    if total_flops(own) == total_flops(before):
        return before
    return Refusal("more inputs recorded than in the operator's schema")


def _read(reader: Reader, call: Call) -> tuple[Cost, ...] | Refusal:
    try:
        costs = reader(call)
    except UncountableError as error:
        return Refusal(str(error))
    if not any(is_complex(name) for name in call.types or ()):
        return costs
    if any(one.formula.startswith("convolution.") for one in costs):
        return Refusal("complex convolution: its real convolutions are counted")
    return tuple(
        msgspec.structs.replace(one, flops=_COMPLEX * one.flops) if one.formula == "matmul" else one
        for one in costs
    )


def total_flops(costs: Iterable[Cost]) -> int:
    """Return the floating-point operations of all parts."""
    return sum(one.flops for one in costs)


_BY_NUMBER: Final[dict[int, list[str]]] = {
    1: """
        _foreach_abs _foreach_abs_ _foreach_exp _foreach_exp_ _foreach_neg _foreach_neg_
        _foreach_reciprocal _foreach_reciprocal_ _foreach_sqrt _foreach_sqrt_ _foreach_zero
        _foreach_zero_ abs abs_ bitwise_not bitwise_not_ ceil ceil_ cos cos_ erf erf_ erfc erfc_
        exp exp2 exp2_ exp_ expm1 expm1_ floor floor_ hardsigmoid hardsigmoid_ hardswish
        hardswish_ isinf isnan isneginf log log10 log10_ log1p log1p_ log2 log2_ log_
        logical_not logical_not_ mish mish_ neg neg_ negative negative_ reciprocal reciprocal_
        relu relu6 relu6_ relu_ rsqrt rsqrt_ sgn sgn_ sigmoid sigmoid_ sign sign_ silu silu_ sin
        sin_ sqrt sqrt_ square square_ tan tan_ tanh tanh_ trunc trunc_ zero_
        """.split(),
    2: """
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
        _adaptive_avg_pool3d_backward _foreach_div _foreach_div_ _foreach_maximum
        _foreach_maximum_ _foreach_mul _foreach_mul_ _foreach_pow _foreach_pow_ _int_mm
        _prelu_kernel adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
        adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d bitwise_and bitwise_and_
        bitwise_or bitwise_or_ bitwise_xor bitwise_xor_ cat clamp_max clamp_max_ clamp_min
        clamp_min_ concat dot eq eq_ fill_ floor_divide floor_divide_ fmax fmin fmod fmod_ ge
        ge_ gelu gelu_ ger gt gt_ hardsigmoid_backward hardswish_backward le le_ leaky_relu
        leaky_relu_ logical_and logical_and_ logical_or logical_or_ logical_xor logical_xor_ lt
        lt_ matmul maximum minimum mkldnn_adaptive_avg_pool2d mul mul_ multiply multiply_ mv ne
        ne_ outer pow pow_ remainder remainder_ round round_ sigmoid_backward silu_backward
        stack tanh_backward tril tril_ triu triu_ true_divide true_divide_ vdot
        """.split(),
    3: """
        _foreach_add _foreach_add_ _foreach_copy _foreach_copy_ _foreach_lerp _foreach_lerp_
        _foreach_sub _foreach_sub_ _fused_dropout _log_softmax _prelu_kernel_backward
        _safe_softmax _softmax _thnn_fused_gru_cell_backward adaptive_max_pool2d_backward
        adaptive_max_pool3d_backward add add_ all amax amin any argmax argmin bernoulli_ bmm
        clamp clamp_ constant_pad_nd copy_ cumprod cumsum cumsum_ div div_ divide divide_
        gelu_backward hardtanh hardtanh_ index_select l1_loss lerp lerp_ linear log_softmax
        masked_fill masked_fill_ max min mkldnn_linear mm mse_loss native_dropout
        native_dropout_backward rsub softmax softplus sub sub_ threshold threshold_
        threshold_backward upsample_nearest1d where
        """.split(),
    4: """
        _foreach_addcdiv _foreach_addcdiv_ _foreach_addcmul _foreach_addcmul_ _fused_rms_norm
        _log_softmax_backward_data _softmax_backward_data addcdiv addcdiv_ addcmul addcmul_
        binary_cross_entropy elu elu_ gather hardtanh_backward huber_loss kl_div
        leaky_relu_backward linear_backward mean mse_loss_backward nan_to_num nan_to_num_
        normal_ prod rms_norm smooth_l1_loss softplus_backward sum uniform_ upsample_linear1d
        upsample_nearest1d_backward upsample_nearest2d
        """.split(),
    5: """
        _grouped_mm _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm addbmm_ addmm_ addmv addmv_
        baddbmm_
        binary_cross_entropy_backward binary_cross_entropy_with_logits embedding
        embedding_dense_backward huber_loss_backward linalg_vector_norm native_layer_norm
        nll_loss nll_loss2d_forward nll_loss_forward norm smooth_l1_loss_backward sspaddmm
        upsample_bilinear2d upsample_linear1d_backward upsample_nearest2d_backward
        upsample_nearest3d
        """.split(),
    6: """
        _addmm_activation _slow_conv2d_forward _thnn_fused_lstm_cell_backward
        _thnn_fused_lstm_cell_backward_impl addmm avg_pool1d baddbmm elu_backward group_norm
        layer_norm max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices
        max_pool3d max_pool3d_with_indices slow_conv3d slow_conv3d_forward thnn_conv2d
        upsample_bilinear2d_backward upsample_nearest3d_backward upsample_trilinear3d
        """.split(),
    7: """
        _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional
        _conv_depthwise2d _convolution_mode _native_batch_norm_legit_no_training
        _scaled_dot_product_flash_attention_for_cpu _slow_conv2d_backward avg_pool2d avg_pool3d
        conv1d conv2d conv3d conv_depthwise3d cudnn_convolution_relu linspace
        miopen_convolution_relu mkldnn_convolution nll_loss2d_backward nll_loss_backward
        slow_conv_dilated2d slow_conv_dilated3d upsample_trilinear3d_backward
        """.split(),
    8: """
        _native_batch_norm_legit _scaled_dot_product_efficient_attention
        _scaled_dot_product_fused_attention_overrideable _scaled_mm avg_pool2d_backward
        avg_pool3d_backward conv_transpose1d conv_transpose2d conv_transpose3d cudnn_batch_norm
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward miopen_batch_norm
        miopen_batch_norm_backward native_batch_norm native_group_norm
        native_layer_norm_backward scaled_dot_product_attention slow_conv_transpose2d
        slow_conv_transpose3d
        """.split(),
    9: """
        _scaled_grouped_mm _batch_norm_impl_index _scaled_dot_product_attention_math
        _scaled_dot_product_cudnn_attention batch_norm convolution convolution_overrideable
        cudnn_batch_norm_backward cudnn_convolution cudnn_convolution_add_relu
        miopen_convolution miopen_convolution_add_relu miopen_depthwise_convolution
        """.split(),
    10: """
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu_backward
        convolution_backward_overrideable cudnn_convolution_transpose
        miopen_convolution_transpose native_batch_norm_backward native_group_norm_backward
        """.split(),
    11: """
        convolution_backward
        """.split(),
    13: """
        _convolution _scaled_dot_product_efficient_attention_backward
        """.split(),
    14: """
        _efficient_attention_forward miopen_rnn
        """.split(),
    15: """
        _scaled_dot_product_flash_attention_backward
        """.split(),
    16: """
        _cudnn_rnn _scaled_dot_product_cudnn_attention_backward mkldnn_rnn_layer
        """.split(),
    17: """
        _flash_attention_backward _scaled_dot_product_fused_attention_overrideable_backward
        """.split(),
    18: """
        _flash_attention_forward
        """.split(),
    20: """
        _efficient_attention_backward
        """.split(),
    21: """
        miopen_rnn_backward
        """.split(),
    22: """
        _cudnn_rnn_backward
        """.split(),
    23: """
        mkldnn_rnn_layer_backward
        """.split(),
}

MOST_INPUTS: Final[dict[str, int]] = {
    f"aten::{name}": number for number, names in _BY_NUMBER.items() for name in names
}
"""Maximum number of inputs of PyTorch's operators, by their schemas, with which a test compares
them. TorchScript's interpreter passes its whole stack to the profiler: the operator's own inputs
are the last recorded ones."""
