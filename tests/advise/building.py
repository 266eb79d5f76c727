"""Traces in which one rule has, or has not, something to find."""

from __future__ import annotations

from typing import Any, Final

from tests.support.traces import TraceBuilder
from traceana.enrich.refine.searches import with_searches

STEPS: Final = 4
WALL: Final = 10_000_000
MICROSECOND: Final = 1_000
FLOATS: Final = '["float", "float"]'

V100: Final = {
    "device": 0,
    "name": "Tesla V100-SXM2-16GB",
    "vendor": "NVIDIA",
    "compute_capability": "7.0",
    "multiprocessors": 80,
}


class Run(TraceBuilder):
    """Steps of 10 ms on a V100, each with a kernel of 8 ms without findings, and added events.

    ``at`` is the beginning of what is put into the present step.
    """

    def __init__(self, **device: Any) -> None:
        super().__init__(framework="PyTorch")
        self.row("devices", **{**V100, **device})
        self.name("plain", category="elementwise")
        self.number = -1
        self.at = 0
        self.step_row = 0

    def next_step(self, wall: int = WALL, filled: int = 8_000_000) -> None:
        """Begin the next step."""
        self.number += 1
        begin = self.number * WALL if self.number == 0 else self.end
        self.step_row = self.step(self.number, begin, wall)
        self.kernel_in_step("plain", begin, filled)
        self.at, self.end = begin + filled, begin + wall

    end = 0

    def kernel_in_step(self, name: str, start: int, duration: int, **columns: Any) -> int:
        """Add a kernel that fills the device."""
        grid = {"grid_x": 1000, "grid_y": 1, "grid_z": 1}
        return self.kernel(name, start, duration, **{"step": self.step_row, **grid, **columns})

    def put(self, name: str, duration: int, **columns: Any) -> int:
        """Add a kernel after the existing ones."""
        row = self.kernel_in_step(name, self.at, duration, **columns)
        self.at += duration
        return row

    def put_copy(self, kind: str, duration: int, **columns: Any) -> int:
        """Add a copy after the existing activities."""
        row = self.copy(kind, self.at, duration, **{"step": self.step_row, **columns})
        self.at += duration
        return row

    def op(self, name: str, shapes: str, types: str | None = FLOATS, **more: Any) -> int:
        """Add an operator."""
        return self.row(
            "ops", name=name, process=1, thread=1, start=self.at, duration=10, depth=0,
            input_shapes=shapes, input_types=types, **more,
        )  # fmt: skip

    def convolution(
        self,
        *algorithms: str,
        images: tuple[int, int, int] = (32, 64, 56),
        filters: tuple[int, int] = (64, 3),
        stride: int = 1,
        direction: str = "fprop",
        duration: int = 700 * MICROSECOND,
        tensor_core: bool = False,
        layout: int = 0,
        types: str | None = FLOATS,
    ) -> None:
        """Add a convolution: images (N, C, side) and filters (K, side), by one operator's call."""
        (batch, channels, side), (out, window) = images, filters
        op = self.op(
            "aten::conv2d",
            f"[[{batch},{channels},{side},{side}],[{out},{channels},{window},{window}],[],[],[],[]]",
            types,
            inputs=f'["","","","[{stride}, {stride}]","[{window // 2}, {window // 2}]",'
            '"[1, 1]","1"]',
        )
        for algorithm in algorithms:
            episode = self.row("episodes", op=op, algorithm=algorithm, direction=direction)
            name = f"{algorithm} {direction} {tensor_core}"
            self.name(
                name, category="conv", algorithm=algorithm, direction=direction,
                precision="fp16" if tensor_core else "fp32", tensor_core=tensor_core,
            )  # fmt: skip
            if layout:
                self.name("nchwToNhwc", category="layout", function="nchw_to_nhwc")
                self.put("nchwToNhwc", layout, op=op, episode=episode)
            self.put(name, duration, op=op, episode=episode)


def run_of(put: Any, **device: Any) -> Any:
    """Return the trace of a run into whose every step ``put`` puts something."""
    run = Run(**device)
    for _ in range(STEPS):
        run.next_step()
        put(run)
    return with_searches(run.build())
