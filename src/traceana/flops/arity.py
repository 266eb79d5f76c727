"""How many inputs PyTorch's operators take at most, by their schemas.

TorchScript's interpreter hands the profiler its whole stack: the operator's own inputs are the last
of those recorded. What is recorded beyond this number is not the operator's. A test compares these
numbers with PyTorch's schemas.
"""

from __future__ import annotations

from typing import Final

from traceana.flops.words import words

_BY_NUMBER: Final[dict[int, tuple[str, ...]]] = {
    1: words(
        """
        _foreach_abs _foreach_abs_ _foreach_exp _foreach_exp_ _foreach_neg _foreach_neg_
        _foreach_reciprocal _foreach_reciprocal_ _foreach_sqrt _foreach_sqrt_ _foreach_zero
        _foreach_zero_ abs abs_ bitwise_not bitwise_not_ ceil ceil_ cos cos_ erf erf_ erfc erfc_
        exp exp2 exp2_ exp_ expm1 expm1_ floor floor_ hardsigmoid hardsigmoid_ hardswish
        hardswish_ isinf isnan isneginf log log10 log10_ log1p log1p_ log2 log2_ log_
        logical_not logical_not_ mish mish_ neg neg_ negative negative_ reciprocal reciprocal_
        relu relu6 relu6_ relu_ rsqrt rsqrt_ sgn sgn_ sigmoid sigmoid_ sign sign_ silu silu_ sin
        sin_ sqrt sqrt_ square square_ tan tan_ tanh tanh_ trunc trunc_ zero_
        """
    ),
    2: words(
        """
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
        """
    ),
    3: words(
        """
        _foreach_add _foreach_add_ _foreach_copy _foreach_copy_ _foreach_lerp _foreach_lerp_
        _foreach_sub _foreach_sub_ _fused_dropout _log_softmax _prelu_kernel_backward
        _safe_softmax _softmax _thnn_fused_gru_cell_backward adaptive_max_pool2d_backward
        adaptive_max_pool3d_backward add add_ all amax amin any argmax argmin bernoulli_ bmm
        clamp clamp_ constant_pad_nd copy_ cumprod cumsum cumsum_ div div_ divide divide_
        gelu_backward hardtanh hardtanh_ index_select l1_loss lerp lerp_ linear log_softmax
        masked_fill masked_fill_ max min mkldnn_linear mm mse_loss native_dropout
        native_dropout_backward rsub softmax softplus sub sub_ threshold threshold_
        threshold_backward upsample_nearest1d where
        """
    ),
    4: words(
        """
        _foreach_addcdiv _foreach_addcdiv_ _foreach_addcmul _foreach_addcmul_ _fused_rms_norm
        _log_softmax_backward_data _softmax_backward_data addcdiv addcdiv_ addcmul addcmul_
        binary_cross_entropy elu elu_ gather hardtanh_backward huber_loss kl_div
        leaky_relu_backward linear_backward mean mse_loss_backward nan_to_num nan_to_num_
        normal_ prod rms_norm smooth_l1_loss softplus_backward sum uniform_ upsample_linear1d
        upsample_nearest1d_backward upsample_nearest2d
        """
    ),
    5: words(
        """
        _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm addbmm_ addmm_ addmv addmv_ baddbmm_
        binary_cross_entropy_backward binary_cross_entropy_with_logits embedding
        embedding_dense_backward huber_loss_backward linalg_vector_norm native_layer_norm
        nll_loss nll_loss2d_forward nll_loss_forward norm smooth_l1_loss_backward sspaddmm
        upsample_bilinear2d upsample_linear1d_backward upsample_nearest2d_backward
        upsample_nearest3d
        """
    ),
    6: words(
        """
        _addmm_activation _slow_conv2d_forward _thnn_fused_lstm_cell_backward
        _thnn_fused_lstm_cell_backward_impl addmm avg_pool1d baddbmm elu_backward group_norm
        layer_norm max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices
        max_pool3d max_pool3d_with_indices slow_conv3d slow_conv3d_forward thnn_conv2d
        upsample_bilinear2d_backward upsample_nearest3d_backward upsample_trilinear3d
        """
    ),
    7: words(
        """
        _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional
        _conv_depthwise2d _convolution_mode _native_batch_norm_legit_no_training
        _scaled_dot_product_flash_attention_for_cpu _slow_conv2d_backward avg_pool2d avg_pool3d
        conv1d conv2d conv3d conv_depthwise3d cudnn_convolution_relu linspace
        miopen_convolution_relu mkldnn_convolution nll_loss2d_backward nll_loss_backward
        slow_conv_dilated2d slow_conv_dilated3d upsample_trilinear3d_backward
        """
    ),
    8: words(
        """
        _native_batch_norm_legit _scaled_dot_product_efficient_attention
        _scaled_dot_product_fused_attention_overrideable _scaled_mm avg_pool2d_backward
        avg_pool3d_backward conv_transpose1d conv_transpose2d conv_transpose3d cudnn_batch_norm
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward miopen_batch_norm
        miopen_batch_norm_backward native_batch_norm native_group_norm
        native_layer_norm_backward scaled_dot_product_attention slow_conv_transpose2d
        slow_conv_transpose3d
        """
    ),
    9: words(
        """
        _batch_norm_impl_index _scaled_dot_product_attention_math
        _scaled_dot_product_cudnn_attention batch_norm convolution convolution_overrideable
        cudnn_batch_norm_backward cudnn_convolution cudnn_convolution_add_relu
        miopen_convolution miopen_convolution_add_relu miopen_depthwise_convolution
        """
    ),
    10: words(
        """
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu_backward
        convolution_backward_overrideable cudnn_convolution_transpose
        miopen_convolution_transpose native_batch_norm_backward native_group_norm_backward
        """
    ),
    11: words(
        """
        convolution_backward
        """
    ),
    13: words(
        """
        _convolution _scaled_dot_product_efficient_attention_backward
        """
    ),
    14: words(
        """
        _efficient_attention_forward miopen_rnn
        """
    ),
    15: words(
        """
        _scaled_dot_product_flash_attention_backward
        """
    ),
    16: words(
        """
        _cudnn_rnn _scaled_dot_product_cudnn_attention_backward mkldnn_rnn_layer
        """
    ),
    17: words(
        """
        _flash_attention_backward _scaled_dot_product_fused_attention_overrideable_backward
        """
    ),
    18: words(
        """
        _flash_attention_forward
        """
    ),
    20: words(
        """
        _efficient_attention_backward
        """
    ),
    21: words(
        """
        miopen_rnn_backward
        """
    ),
    22: words(
        """
        _cudnn_rnn_backward
        """
    ),
    23: words(
        """
        mkldnn_rnn_layer_backward
        """
    ),
}

MOST_INPUTS: Final[dict[str, int]] = {
    f"aten::{name}": number for number, names in _BY_NUMBER.items() for name in names
}
