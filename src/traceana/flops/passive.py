"""Operators without self work: they make views, allocate, or call other operators."""

from __future__ import annotations

from typing import Final

import polars as pl

VIEWS: Final = """
    alias as_strided as_strided_ broadcast_tensors broadcast_to chunk conj contiguous data
    detach detach_ diagonal expand expand_as flatten imag is_contiguous is_floating_point
    is_nonzero is_pinned is_same_size lift lift_fresh mT matrix_H moveaxis movedim narrow
    numpy_T permute positive ravel real record_stream rename requires_grad_ reshape reshape_as
    resolve_conj resolve_neg result_type select set_ size slice split split_with_sizes squeeze
    squeeze_ stride swapaxes swapdims t t_ tensor_split transpose transpose_ unbind unflatten
    unsafe_chunk unsafe_split unsafe_split_with_sizes unfold unsqueeze unsqueeze_ view view_as
    _conj _neg_view _reshape_alias _unsafe_view _version can_cast output_nr hstack vstack
    _fw_primal _has_same_storage_numel _make_dual _unpack_dual
    """.split()
ALLOCATIONS: Final = """
    empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_
    _efficientzerotensor
    _has_compatible_shallow_copy_type _nnpack_available cudnn_is_acceptable storage_offset
    """.split()
# The operators inside these do the work.
COMPOSITES: Final = """
    clone to _to_copy einsum tensordot cross_entropy_loss nll_loss_nd full full_like zeros
    zeros_like ones ones_like new_zeros new_ones new_full randn rand randn_like rand_like
    dropout feature_dropout instance_norm pad item type_as gru lstm rnn_tanh rnn_relu
    multi_head_attention_forward embedding_backward slice_backward select_backward prelu logit
    pin_memory _pin_memory
    """.split()

TENSORFLOW: Final = """
    Const ExpandDims Identity IdentityN Merge NoOp Placeholder ReadVariableOp Reshape Shape Squeeze
    StopGradient Switch VarHandleOp VariableV2 _Arg _Retval _DeviceArg _DeviceRetval
    """.split()

PASSIVE: Final = frozenset(
    (
        *(f"aten::{name}" for name in (*VIEWS, *ALLOCATIONS, *COMPOSITES)),
        *TENSORFLOW,
        "detach",
        "detach_",
    )
)
"""Names of operators that are neither counted nor listed as uncounted."""

_WRAPPERS: Final = (
    r"^autograd::engine::evaluate_function: |^torch::autograd::AccumulateGrad$|Backward\d+$|"
    r"(?:^|:|\.)CheckpointFunction(?:Backward)?$|^BackwardHookFunction(?:Backward)?$|"
    r"^Torch-Compiled Region|"
    r"^TorchDynamo Cache Lookup$|^AOTDispatcher Runtime Wrapper|^Pregraph bytecode$|"
    r"^Optimizer\.|^ProfilerStep|^enumerate\(DataLoader\)|^nn\.Module: "
)


def passive(name: pl.Expr) -> pl.Expr:
    """Return whether the operators of ``name`` (text) have no self work.

    Nodes of autograd's graph, optimizers, annotations and the wrappers of torch.compile count by
    the operators inside them.
    A node whose name ends without a number is defined by the program, or is of PyTorch before 1.9:
    it may launch kernels and is not passive. A reentrant checkpoint and the node that calls a
    module's backward hooks launch no kernels.
    """
    return name.is_in(sorted(PASSIVE)) | name.str.contains(_WRAPPERS)
