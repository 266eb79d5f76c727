"""cuDNN's own functions and structures, against a stand-in on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from workloads.algorithms.cudnn_api import CuDNN, CuDNNError, Performance
from workloads.algorithms.libraries import LibraryError

Load = Callable[[], ctypes.CDLL]


def test_a_library_that_is_none(fake_cudnn: Load) -> None:
    with pytest.raises(LibraryError, match="not a cuDNN"):
        CuDNN(ctypes.CDLL(None))


def test_an_error_has_the_librarys_words(fake_cudnn: Load) -> None:
    api = CuDNN(fake_cudnn())
    tensor = api.create("TensorDescriptor")
    with pytest.raises(CuDNNError, match="cudnnSetFilter4dDescriptor: FAKE_BAD_PARAM") as caught:
        api.call("cudnnSetFilter4dDescriptor", tensor, 0, 0, 1, 1, 1, 1)
    assert caught.value.failure == "failed"


def test_the_layout_of_a_result_is_the_headers() -> None:
    """Offsets on a 64-bit machine, as a C compiler gives them for cuDNN's own structure."""
    offsets = {name: getattr(Performance, name).offset for name, *_ in Performance._fields_}
    assert offsets == {
        **{"algorithm": 0, "status": 4, "time": 8, "memory": 16},
        **{"determinism": 24, "math_type": 28, "reserved": 32},
    }
    assert ctypes.sizeof(Performance) == 48
