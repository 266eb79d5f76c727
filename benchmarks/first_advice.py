"""The first advice on recorded GPU programs, held against what was expected of each beforehand.

``python -m benchmarks.first_advice FOLDER …`` advises on the traces of each folder that are listed
in :data:`EXPECTED`, and prints a Markdown table and a summary, which stand in
``docs/expected-advice.md``. The expectations were written down from what is known of the programs
(network, precision, batch, kind of copies, waits) before the advice was read.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import traceana
from traceana.advise import advise
from traceana.whatif.program import without_profiler

COPIES, CORES, GRAPHS = "pageable_copies", "tensor_cores_unused", "launch_bound host_bound"
"""Rules that mean one change each: pinned memory; TF32; CUDA graphs or compiled code."""

EXPECTED: Final = {
    **dict.fromkeys(
        (
            *("alexnet_b128", "alexnet_b128_again1", "alexnet_b256", "alexnet_b64"),
            *("alexnet_b128_norelu", "alexnet_b128_nodropout", "alexnet_b128_noopt"),
            *("alexnet_b128_benchmark", "alexnet_b128_inputgrad", "alexnet_b128_noinputgrad"),
            *("alexnet_b128_nowait", "alexnet_b128_log8", "alexnet_b32_stack"),
            *("alexnet_b128_tf32", "alexnet_b128_nhwc_tf32", "alexnet_b128_bf16"),
            *("alexnet_eager", "alexnet_default", "vgg11_b32_tf32"),
        ),
        COPIES,
    ),
    **dict.fromkeys(("alexnet_b128_wait20", "alexnet_b128_wait10"), "data_loading"),
    **dict.fromkeys(
        (
            *("alexnet_b128_pinned", "alexnet_b128_prefetch", "resnet18_b64", "resnet18_b128"),
            *("resnet18_b64_norelu", "resnet18_b64_nonorm", "resnet18_b8_graph"),
            *("resnet18_b32_memory", "vgg11_b32", "vgg11_b64", "vgg11_b32_norelu", "gpt_b8"),
            *("vit_b_16_b16", "convnext_tiny_b16", "unet_b16", "big5_b64", "r3d_18_b4"),
            *("resnet18_eval_reduce-overhead", "convs_fp32_nchw", "convs_fp32_nchw_benchmark"),
            *("convs_fp32_nhwc", "convs_fp32_nhwc_benchmark", "products"),
            *("own/trace", "alexnet/trace", "alexnet"),
        ),
        CORES,
    ),
    **dict.fromkeys(
        (
            *("resnet18_b8", "resnet18_b16", "resnet18_b8_forloop", "resnet18_b8_fused"),
            *("resnet18_b64_tf32", "gpt_b8_tf32", "gpt_b16_bf16", "lstm_b64", "moe_b4096_bf16"),
            *("squeezenet1_1_b16", "mobilenet_v3_large_b16", "resnet18_eager"),
            *("resnet18_default", "llama_generate", "cupy_managed", "nccl_one_rank"),
        ),
        GRAPHS,
    ),
    **dict.fromkeys(("convs_tf32_nchw", "convs_tf32_nchw_benchmark"), "layout_changes"),
    "llama_decode_graph": "small_batch",
    "streams_copies": f"{COPIES} exposed_copies",
}
"""The rules of which one is expected first, by the name of the trace."""


def place_of(expected: str, rules: list[str]) -> int:
    """Return the place of the first of the ``expected`` rules among ``rules``, 0 if none is."""
    return min((rules.index(rule) + 1 for rule in expected.split() if rule in rules), default=0)


def advised_rules(file: Path) -> list[str]:
    """Return the rules of the advice on a trace that save something, in its order."""
    findings = advise(without_profiler(traceana.open(file))).findings
    return [finding.rule.id for finding in findings if finding.kind != "no saving"]


def main() -> None:
    """Print the table and the summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_advice")
    parser.add_argument("folder", type=Path, nargs="+")
    print("| trace | expected | first | second | place |", "|---|---|---|---|--:|", sep="\n")
    places = []
    for folder in parser.parse_args().folder:
        for name, expected in EXPECTED.items():
            suffixes = (".json.gz", ".xplane.pb")
            file = next(
                (file for end in suffixes if (file := folder / f"{name}{end}").is_file()), None
            )
            if file is None:
                continue
            rules = advised_rules(file)
            places.append(place_of(expected, rules))
            first, second = [f"`{rule}`" for rule in rules[:2]] + ["-"] * (2 - len(rules[:2]))
            wanted = " or ".join(f"`{rule}`" for rule in expected.split())
            print(f"| {name} | {wanted} | {first} | {second} | {places[-1] or 'none'} |")
    ranked = [places.count(place) for place in (1, 2)]
    print(
        f"\n{len(places)} recordings: first in {ranked[0]}, second in {ranked[1]}, "
        f"later or not found in {len(places) - sum(ranked)}."
    )


if __name__ == "__main__":
    main()
