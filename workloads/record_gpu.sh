#!/bin/sh
# Record the GPU fixtures on a CUDA machine with Python 3.11 or later, PyTorch and NumPy: nothing else.
#
#   sh workloads/record_gpu.sh                  into fixtures/
#   sh workloads/record_gpu.sh --output DIR     somewhere else
#   sh workloads/record_gpu.sh --device cpu     try the machinery without a GPU, into a new
#                                               directory: tiny runs, no use as fixtures
#   … --only NAME                               the one recording of this name; may be repeated;
#                                               algorithms: the study of convolution algorithms
#   … --open                                    without namespaces (sandbox.py), should CUDA not be
#                                               found in them; recordings then name the host
#
# AlexNet, GoogLeNet and ResNet-50, in fp32, tf32 and channels_last, by PyTorch and, where there is a
# JAX that finds the GPU, by JAX; AlexNet in some more ways; and every algorithm that cuDNN has for
# AlexNet's convolutions, in fp32 and tf32, timed with its workspace. PYTHON names the interpreter
# (python3). Stops within ten minutes: recordings after seven, and the algorithms have two and a half.
# nsys is used where it is installed (and the namespaces it needs can be made, see sandbox.py), and so is
# ncu, for one step and the metrics of measurements.py; it needs leave to read the GPU's counters (root,
# or the driver's NVreg_RestrictProfilingToAdminUsers=0).
# Run on an H200 (2026-11-27): 18 recordings and both studies in six minutes; without nsys.
set -eu

fail() {
    echo "record_gpu.sh: $*" >&2
    exit 2
}

python=${PYTHON:-python3}
device=cuda
output=
only=
algorithms=
open=
while [ $# -gt 0 ]; do
    case $1 in
        --device | --output | --only) [ $# -gt 1 ] || fail "$1 needs a value" ;;
        --open)
            open=$1
            shift
            continue
            ;;
        *) fail "unknown option $1; there are --device, --output, --only and --open" ;;
    esac
    case $1 in
        --device) device=$2 ;;
        --output) output=$2 ;;
        --only)
            case $2 in
                algorithms) algorithms=alone ;;
                *) only="$only --only $2" ;;
            esac
            ;;
    esac
    shift 2
done
case $device in
    cuda) plan=gpu ;;
    cpu) plan=smoke ;;
    *) fail "--device is cuda or cpu, not $device" ;;
esac
# Found and not imported: that takes as long as a small recording.
here='import sys; from importlib.util import find_spec
sys.exit(sys.version_info < (3, 11) or None in map(find_spec, ("numpy", "torch")))'
"$python" -c "$here" 2>/dev/null ||
    fail "$python lacks PyTorch or NumPy, or is older than 3.11; name another: PYTHON=/path/to/python3"

case $python in
    */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;;
esac
repository=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "$output" ]; then
    output=$repository/fixtures
    [ $plan = gpu ] || output=$(mktemp -d)
fi
mkdir -p "$output"
output=$(cd "$output" && pwd)

if [ $plan = gpu ] && command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
fi
cd "$repository"
# traceana itself need not be installed.
PYTHONPATH=$repository/src${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
status=0
if [ -n "$only" ] || [ -z "$algorithms" ]; then
    set -- --plan $plan --output "$output"
    # shellcheck disable=SC2086  # words, and no recording has a space in its name
    set -- "$@" $only
    [ -z "$open" ] || set -- "$@" --open
    timeout 420 "$python" -m workloads.record_fixtures "$@" || status=$?
    [ $status -ne 124 ] || echo "record_gpu.sh: recordings stopped; what was made is in $output" >&2
fi

finds='import torch; assert torch.cuda.is_available()'
# measure NAME OPTION…: one study of algorithms; what it has after a minute is kept.
measure() {
    name=$1
    shift
    [ $plan = smoke ] || "$python" -c "$finds" 2>/dev/null || {
        echo "$name: passed over, PyTorch finds no GPU here"
        return 0
    }
    mkdir -p "$output/algorithms"
    timeout 72 "$python" -m workloads.algorithms --out "$output/algorithms/$name.json" \
        --seconds 55 "$@" || {
        echo "$name: FAILED" >&2
        status=1
    }
}

if [ -n "$algorithms" ] || [ -z "$only" ]; then
    if [ $plan = gpu ]; then
        measure alexnet-gpu-cudnn-fp32 --library cudnn --batch 16,32,64,128,256
        measure alexnet-gpu-cudnn-tf32 --library cudnn --batch 16,32,64,128,256 --precision tf32
    else
        measure alexnet-smoke-onednn --library onednn --batch 1 --image-size 67 --width-divisor 8 \
            --repetitions 3 --limit 0.01 --threads 1
    fi
fi
[ $status -ne 124 ] || fail "stopped after seven minutes of recordings"
exit $status
