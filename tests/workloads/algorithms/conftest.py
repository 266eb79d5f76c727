"""Shared fixtures of the tests of algorithms."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def fake_cudnn(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], ctypes.CDLL]:
    """Loads the stand-in for libcudnn; skips without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = Path(__file__).with_name("fake_cudnn.c")
    library = tmp_path_factory.mktemp("cudnn") / "libcudnn.so.9"
    flags = ("-O2", "-Wall", "-Werror", "-shared", "-fPIC")
    subprocess.run([compiler, *flags, "-o", library, source], check=True)
    return lambda: ctypes.CDLL(str(library))
