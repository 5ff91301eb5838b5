#!/usr/bin/env bash
# The checks that need a GPU, results written as they come. Needs only what is installed: no network.
#   scripts/gpu_check.sh [OUT [PHOTOS]]     OUT: folder for results (default: results/gpu)   PHOTOS: class folders (train/, val/)
#   WORKLOAD=resnet50, ssd or maskrcnn: only that one's benchmarks, well inside ten minutes; default: all
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-results/gpu}
photos=${2:-}
workload=${WORKLOAD:-all}
python=${PYTHON:-python3}
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
mkdir -p "$out"
failed=0

check() {
    local name=$1
    shift
    echo "== $name: $*"
    timeout 240 "$@" >"$out/$name.log" 2>&1
    local code=$?
    tail -n 12 "$out/$name.log"
    echo "== $name: exit $code"
    [ "$code" = 0 ] || failed=1
}

nvidia-smi >"$out/nvidia-smi.txt" 2>&1
check doctor "$python" -m paceline doctor
check gpu-tests "$python" -m pytest tests/gpu -q
if [ "$workload" = all ] || [ "$workload" = resnet50 ]; then
    step=("$python" -m paceline bench step --batch 256 --precision bf16 --rounds 5 --seconds 3)
    check step-eager "${step[@]}" --out "$out/step-eager.json"
    check step-compiled "${step[@]}" --compile --out "$out/step-compiled.json"
fi
if [ "$workload" = all ] || [ "$workload" = ssd ]; then
    # Full size; each result file grows part by part, so that a time limit keeps what is measured.
    ssd=("$python" -m paceline bench step --task ssd --system gpu --precision bf16 --matrix 8192 --seconds 2)
    check ssd-step "${ssd[@]}" --batch 128 --part step --rounds 5 --out "$out/ssd-step.json"
    check ssd-step-compiled "${ssd[@]}" --batch 128 --part step --rounds 3 --compile --out "$out/ssd-step-compiled.json"
    check ssd-eval "${ssd[@]}" --batch 128 --part eval --rounds 3 --out "$out/ssd-eval.json"
    check ssd-ops "${ssd[@]}" --batch 8 --part ops --rounds 2 --out "$out/ssd-ops.json"
fi
if [ "$workload" = all ] || [ "$workload" = maskrcnn ]; then
    # Eager and CUDA graph of ours beside torchvision's model, first; then compiled; then operations and prediction.
    rcnn=("$python" -m paceline bench step --task maskrcnn --system gpu --precision bf16 --height 800 --width 1344 --matrix 8192
        --seconds 2)
    check maskrcnn-step-4 "${rcnn[@]}" --batch 4 --part step --rounds 3 --out "$out/maskrcnn-step-4.json"
    check maskrcnn-step-12 "${rcnn[@]}" --batch 12 --part step --rounds 3 --positives 30 --out "$out/maskrcnn-step-12.json"
    check maskrcnn-compiled-4 "${rcnn[@]}" --batch 4 --part step --rounds 2 --positives 30 --compile --out "$out/maskrcnn-compiled-4.json"
    check maskrcnn-compiled-12 "${rcnn[@]}" --batch 12 --part step --rounds 2 --positives 30 --compile --out "$out/maskrcnn-compiled-12.json"
    check maskrcnn-predict "${rcnn[@]}" --batch 4 --part predict --rounds 3 --out "$out/maskrcnn-predict.json"
    check maskrcnn-ops "${rcnn[@]}" --batch 1 --part ops --rounds 3 --out "$out/maskrcnn-ops.json"
fi
if [ -n "$photos" ]; then
    check train-real "$python" -m paceline train resnet50 --data "$photos" --system gpu --global-batch 256 --optim.lr 0.256 \
        --bn-span 256 --steps 60 --log-every 10 --out "$out/run-real"
    check tiny "$python" -m paceline train resnet50-tiny --data "$photos" --system gpu --steps 200 --out "$out/run-tiny"
    check bench-input "$python" -m paceline bench input --data "$photos"
fi
exit $failed
