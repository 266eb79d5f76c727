"""Start of the recording: Python imports this module first, because its folder is on PYTHONPATH.

It starts the recording, then runs the ``sitecustomize`` that it hides.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib costs 5 ms


def _start_recording() -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    inside = os.path.dirname(_HERE)  # noqa: PTH120
    name = "_traceana_recording"
    file = os.path.join(inside, "__init__.py")  # noqa: PTH118
    spec = spec_from_file_location(name, file, submodule_search_locations=[inside])
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    module.start()


def _run_hidden_sitecustomize() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_start_recording()
_run_hidden_sitecustomize()
