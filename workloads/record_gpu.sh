#!/bin/sh
# Record on the next machine with a GPU: sh workloads/record_gpu.sh --help
# PYTHON names an interpreter with PyTorch and NumPy, Python 3.11 or later (python3); they are all
# that it needs.
set -eu
python=${PYTHON:-python3}
# Found and not imported: that takes as long as a small recording.
"$python" -c 'import sys; from importlib.util import find_spec
sys.exit(sys.version_info < (3, 11) or None in map(find_spec, ("numpy", "torch")))' 2>/dev/null || {
    echo "record_gpu.sh: $python lacks PyTorch or NumPy, or is older than 3.11; name another:" \
        "PYTHON=/path/to/python3" >&2
    exit 2
}
# The checkout is named here: PYTHONPATH may be empty or not get through.
exec "$python" -c 'import sys; sys.path.insert(0, sys.argv.pop(1))
from workloads.record_gpu import main
sys.exit(main())' "$(cd "$(dirname "$0")/.." && pwd)" "$@"
