"""Makes a lexicon of kernel names from wheels or shared libraries.

    python -m tools.lexicon LIBRARY_OR_WHEEL... -o FOLDER

CUDA registers a kernel with its mangled name, which is therefore in the library's constant data.
The output is one text file per library, one name per line, sorted. Names are demangled where
binutils' ``c++filt`` is installed.
"""

from __future__ import annotations

import argparse
import mmap
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.elf import NotAnElfError, constant_strings

# Assembled kernels have no mangled name: they begin with an architecture or a generator's prefix.
_ASSEMBLED = re.compile(
    r"(?:cudnn_|trt_|openai_|gen_)?(?:fermi|kepler|maxwell|pascal|volta|turing|ampere|ada|hopper"
    r"|blackwell|sm\d\d+|nvjet|cutlass|[sdchz]gemm|nccl[A-Z]|fmha_)\w*"
)


def is_kernel_name(text: str) -> bool:
    """Return whether ``text`` may name a kernel: mangled, or with an assembled kernel's prefix."""
    return text.startswith("_Z") or _ASSEMBLED.fullmatch(text) is not None


def demangled(names: list[str]) -> list[str]:
    """Return ``names`` demangled by binutils' ``c++filt``, unchanged where not installed."""
    tool = shutil.which("c++filt")
    if tool is None or not names:
        return names
    done = subprocess.run(
        [tool], input="\n".join(names), capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def images(path: Path) -> Iterator[tuple[str, bytes | memoryview]]:
    """Yield the shared libraries of ``path`` with their names: the file itself, or a wheel's."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            for member in wheel.namelist():
                if re.search(r"\.so(?:\.\d+)*$", member):
                    yield f"{path.stem}__{Path(member).name.split('.so')[0]}", wheel.read(member)
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        view = memoryview(image)
        try:
            yield path.name.split(".so")[0], view
        finally:
            view.release()


def kernel_names(image: bytes | memoryview) -> list[str]:
    """Return the distinct kernel names of one library, demangled and sorted."""
    mangled = sorted({text for text in constant_strings(image) if is_kernel_name(text)})
    return sorted(set(demangled(mangled)))


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.lexicon", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="wheels (.whl) or libraries (.so)")
    parser.add_argument("-o", "--output", type=Path, default=Path(), help="folder to write to")
    options = parser.parse_args(None if arguments is None else list(arguments))
    options.output.mkdir(parents=True, exist_ok=True)
    for path in options.files:
        try:
            for name, image in images(path):
                names = kernel_names(image)
                if names:
                    target = options.output / f"{name}.txt"
                    target.write_text("\n".join(names) + "\n", encoding="utf-8")
                    print(f"{target}: {len(names)} names")
        except (OSError, NotAnElfError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
