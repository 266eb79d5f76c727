"""What kind of program a trace is of, for advice that fits it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.advise.rule import Change
from traceana.analyze.per_trace import per_trace
from traceana.analyze.work import work

if TYPE_CHECKING:
    from traceana.advise.rule import Rule
    from traceana.trace import Trace

_OF_NETWORKS: Final = (
    *("conv", "attention", "normalization", "activation", "softmax", "loss", "optimizer"),
    *("pooling", "rnn", "fused"),
)
"""Categories of kernels that only neural networks have."""
_OF_FRAMEWORKS: Final = r"at::|c10::|cudnn|miopen|tensorflow|Eigen|triton_|ncclDev|xla"
_GRADIENTS: Final = ("backward", "optimizer")

_AMD: Final = (
    ("cuDNN's ConvBiasAct, cuBLASLt", "MIOpen's fusion plans, hipBLASLt"),
    ("cuDNN", "MIOpen"),
    ("cuBLASLt", "hipBLASLt"),
    ("cuBLAS", "rocBLAS"),
    ("NCCL", "RCCL"),
    ("NVLink", "Infinity Fabric"),
    ("SMs", "CUs"),
    ("SM time", "CU time"),
    ("fewer blocks", "fewer workgroups"),
    ("blocks / ", "workgroups / "),
    (" (MPS)", ""),
    ("tensor cores", "matrix cores"),
    ("CUDA graphs", "HIP graphs"),
    ("CUDA-aware", "GPU-aware"),
    ("nvidia-smi -q", "amd-smi static --bus"),
)
"""Words of NVIDIA's libraries and hardware, and AMD's. Names in PyTorch's API (``torch.cuda``,
``torch.backends.cudnn``) are the same on both."""
_CUDA_CALL: Final = re.compile(r"\bcuda(?=[A-Z])")


class Program(msgspec.Struct, frozen=True):
    """The program of a trace.

    ``framework`` is null where it is not recorded; ``native`` is true where nothing in the trace is
    of a framework for neural networks; ``inference`` where the framework ran no backward pass and
    no optimizer. ``vendor`` is that of all devices with activity, else null.
    """

    framework: str | None = None
    native: bool = False
    inference: bool = False
    vendor: str | None = None

    def words(self, text: str) -> str:
        """Return ``text`` with the words of the devices' vendor."""
        if self.vendor != "AMD":
            return text
        for nvidia, amd in _AMD:
            text = text.replace(nvidia, amd)
        return _CUDA_CALL.sub("hip", text)

    def adapted(self, rule: Rule) -> Rule:
        """Return ``rule`` in the words of the vendor, with the changes that fit the program."""
        change = rule.change
        own = {one: self.words(getattr(change, one)) for one in change.__struct_fields__}
        if self.inference and own["inference"]:
            own["pytorch"] = own["inference"]
        for left_out in ("pytorch", "tensorflow", "jax") if self.native else ("native",):
            own[left_out] = ""
        return replace(
            rule,
            sentence=self.words(rule.sentence),
            estimate=self.words(rule.estimate),
            caveat=self.words(rule.caveat),
            change=Change(**own),
        )


@per_trace
def program(trace: Trace) -> Program:
    """Return what kind of program ``trace`` is of."""
    framework = trace.meta.framework
    used = work(trace, "rank", "device").unique()
    vendors = used.join(trace.devices, on=["rank", "device"], nulls_equal=True)["vendor"].unique()
    directions = pl.concat(
        [table["direction"].unique().cast(pl.String) for table in (trace.activities, trace.ops)]
    )
    return Program(
        framework,
        framework is None and trace.ops.is_empty() and not _is_network(trace),
        framework is not None and not directions.is_in(_GRADIENTS).any(),
        vendors.item() if len(vendors) == 1 else None,
    )


def _is_network(trace: Trace) -> bool:
    names = trace.names
    known = names["category"].cast(pl.String).is_in(_OF_NETWORKS)
    return bool((known | names["name"].str.contains(_OF_FRAMEWORKS)).any())
