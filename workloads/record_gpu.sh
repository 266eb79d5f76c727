#!/bin/sh
# Record what only a GPU can tell, on a CUDA machine with Python 3.11 or later, PyTorch and NumPy:
# nothing else.
#
#   sh workloads/record_gpu.sh                  into fixtures/
#   sh workloads/record_gpu.sh --output DIR     somewhere else
#   sh workloads/record_gpu.sh --device cpu     try the machinery without a GPU, into a new
#                                               directory: tiny runs, no use as fixtures
#   … --only NAME                               this part, or this one of the recordings, alone; may
#                                               be repeated
#   … --open                                    without namespaces (sandbox.py), should CUDA not be
#                                               found in them; recordings then name the host
#
# The parts, each within a limit of its own and none in need of another; together eight minutes:
#
#   programs      pairs of programs that differ in one thing, with their times without a profiler:
#                 torch.compile in three modes, a CUDA graph, TF32, pinned copies, Lightning
#   recordings    networks in PyTorch and JAX, by torch.profiler, JAX's profiler, nsys and ncu
#   jax           JAX without command buffers
#   algorithms    every algorithm that cuDNN has for AlexNet's convolutions, timed, fp32 and tf32
#   counters      the same algorithms of two layers under ncu: the counters of each one's kernels
#
# PYTHON names the interpreter (python3). nsys and ncu are used where they are installed; ncu needs
# leave to read the GPU's counters (root, or the driver's NVreg_RestrictProfilingToAdminUsers=0).
set -eu

fail() {
    echo "record_gpu.sh: $*" >&2
    exit 2
}

python=${PYTHON:-python3}
device=cuda
output=
parts=
only=
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
                programs | recordings | jax | algorithms | counters) parts="$parts $2" ;;
                *) parts="$parts recordings" only="$only --only $2" ;;
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
cd "$repository"
# traceana itself need not be installed.
PYTHONPATH=$repository/src${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
status=0

if [ $plan = gpu ]; then
    ! command -v nvidia-smi >/dev/null || nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
    "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || {
        echo "record_gpu.sh: PyTorch finds no GPU here; nothing is recorded" >&2
        exit 0
    }
fi

# part NAME SECONDS FOLDER COMMAND…: runs the command, which writes into the folder, where the part is
# wanted, and goes on after a failure.
part() {
    name=$1 limit=$2 folder=$3
    shift 3
    case " ${parts:-$name} " in
        *" $name "*) ;;
        *) return 0 ;;
    esac
    ended=0
    mkdir -p "$folder"
    timeout "$limit" "$@" || ended=$?
    case $ended in
        0) return 0 ;;
        124) echo "$name: stopped after $limit s; what was made is in $output" >&2 ;;
        *) echo "$name: FAILED" >&2 ;;
    esac
    status=1
}

# algorithms NAME OPTION…: one study; stopped by its time limit, it says so in its file.
algorithms() {
    name=$1
    shift
    part algorithms 45 "$output/algorithms" "$python" -m workloads.algorithms --out "$output/algorithms/$name.json" \
        --seconds 35 "$@"
}

if [ $plan = gpu ]; then
    part programs 200 "$output" "$python" -m workloads.pytorch.programs --out "$output/programs" --seconds 110
    if command -v ncu >/dev/null; then
        part counters 50 "$output/algorithms" ncu --csv --page raw --nvtx --profile-from-start off --clock-control none \
            --log-file "$output/algorithms/alexnet-gpu-cudnn-counters.csv" \
            --metrics "$("$python" -c 'from workloads.measurements import METRICS; print(*METRICS, sep=",")')" \
            "$python" -m workloads.algorithms --library cudnn --batch 32 --layer conv2 --layer conv3 \
            --repetitions 3 --out "$output/algorithms/alexnet-gpu-cudnn-counted.json"
    fi
    algorithms alexnet-gpu-cudnn-fp32 --library cudnn --batch 16,32,64,128,256
    algorithms alexnet-gpu-cudnn-tf32 --library cudnn --batch 16,32,64,128,256 --precision tf32
    part jax 70 "$output/without-command-buffers" env XLA_FLAGS=--xla_gpu_enable_command_buffer= "$python" -m workloads.record_fixtures \
        --plan gpu --output "$output/without-command-buffers" $open \
        --only alexnet-gpu-jax-fp32 --only resnet50-gpu-jax-fp32
    # shellcheck disable=SC2086  # words, and no recording has a space in its name
    part recordings 80 "$output" "$python" -m workloads.record_fixtures --plan gpu --output "$output" $open $only
else
    part programs 600 "$output" "$python" -m workloads.pytorch.programs --device cpu --out "$output/programs" \
        --only alexnet_b128 --only resnet18_b8_fused --only alexnet_b64_memory --only products \
        --only lightning
    algorithms alexnet-smoke-onednn --library onednn --batch 1 --image-size 67 --width-divisor 8 \
        --repetitions 3 --limit 0.01 --threads 1
    part jax 300 "$output/without-command-buffers" env XLA_FLAGS=--xla_gpu_enable_command_buffer= "$python" -m workloads.record_fixtures \
        --plan smoke --output "$output/without-command-buffers" $open --only alexnet-smoke-jax-fp32
    # shellcheck disable=SC2086
    part recordings 600 "$output" "$python" -m workloads.record_fixtures --plan smoke --output "$output" $open $only
fi
exit $status
