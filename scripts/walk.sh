#!/usr/bin/env bash
# A user's walk through every verb, on real processes: prepare, show, preview, train, Ctrl-C, kill -9, go on, more steps, eval on
# a test set alone, predict on a folder with odd files, report, the same from Python. It stops at the first thing that is not as
# the documentation says.
#
#   scripts/walk.sh DATA [OUT]      DATA: a data set in COCO's layout (train2017, val2017, annotations)
#
# RECIPE and FLAGS choose another recipe and its flags; STEPS is the run's first length; SHORT=yes leaves out what repeats a verb.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
data=$(realpath "${1:?usage: scripts/walk.sh DATA [OUT]}")
out=$(realpath -m "${2:-walk}")
recipe=${RECIPE:-ssd-demo}
read -r -a flags <<<"${FLAGS:-}"
steps=${STEPS:-120}
python=${PYTHON:-$here/.venv/bin/python}
mkdir -p "$out"
cd "$out"

paceline() {
    printf '\n$ paceline %s\n' "$*"
    "$python" -m paceline "$@"
}

# ends CODE COMMAND...: the command, which must end with CODE.
ends() {
    local wanted=$1 code=0
    shift
    "$@" || code=$?
    [ "$code" = "$wanted" ] || { echo "walk: exit code $code, $wanted was wanted: $*" >&2; exit 1; }
}

# The whole file must have the text.
says() { grep -qF -- "$2" "$1" || { echo "walk: $1 does not say: $2" >&2; exit 1; }; }

# until_event KIND COUNT: waits until the run's events.jsonl has so many of them; the training must be alive.
until_event() {
    until [ -e run/events.jsonl ] && [ "$(grep -cF "\"event\": \"$1\"" run/events.jsonl)" -ge "$2" ]; do
        kill -0 "$training" 2>/dev/null || { echo "walk: training ended before its event '$1' number $2" >&2; exit 1; }
        sleep 0.1
    done
}

# signalled SIGNAL CODE KIND COUNT: the run goes on until that event, gets the signal, and must end with the code.
signalled() {
    local code=0
    printf '\n$ paceline train %s ...   # and %s after event %s number %s\n' "$recipe" "$1" "$3" "$4"
    # A process of its own: a shell in the background ignores SIGINT, and so would what it starts.
    "$python" -c 'import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from paceline.cli.main import main; sys.exit(main())' \
        train "${training_words[@]}" &
    training=$!
    until_event "$3" "$4"
    kill -s "$1" "$training"
    wait "$training" || code=$?
    [ "$code" = "$2" ] || { echo "walk: exit code $code after $1, $2 was wanted" >&2; exit 1; }
}

echo "== prepare: a copy of the set's manifest, and what of it is only scored on"
ends 0 paceline prepare coco "$data" --output-dir prepared
test -s prepared/check.html
mkdir -p test/annotations
ln -sfn "$data/val2017" test/test2017
cp "$data/annotations/instances_val2017.json" test/annotations/instances_test2017.json

echo; echo "== show, preview"
[ -n "${SHORT:-}" ] || ends 0 paceline plan "$recipe" --data prepared "${flags[@]}"
ends 0 paceline preview "$recipe" --data prepared --output preview.png --num-images 8 "${flags[@]}"

echo; echo "== train, interrupted by Ctrl-C, killed, gone on with, and given more"
training_words=("$recipe" --data prepared --output-dir run --max-steps "$steps" --save-every $((steps / 6)) --log-every $((steps / 12)) "${flags[@]}")
signalled INT 75 checkpoint 1
signalled KILL 137 checkpoint 3
ends 0 paceline train "${training_words[@]}" | tee train.txt
says train.txt "resumed from step-"
says train.txt "stopped early"
ends 2 paceline train "${training_words[@]}" 2>refused.txt
cat refused.txt
ends 0 paceline train run/run.json --output-dir run --max-steps $((steps + steps / 3)) | tee more.txt
says more.txt "resumed from step-"

echo; echo "== eval: the run's own pictures, a test set alone, other thresholds"
ends 0 paceline eval run | tee own.txt
ends 0 paceline eval run --data test | tee test.txt
diff <(tail -n +2 own.txt | grep -F AP) <(grep -F AP test.txt | grep -vF verifying)
[ -n "${SHORT:-}" ] || ends 0 paceline eval run --images-dir "$data/val2017" --annotations "$data/annotations/instances_val2017.json" --nms-iou 0.3 --json >eval.json

echo; echo "== predict: a folder with odd files; the good ones are answered, the bad ones listed"
"$python" "$here/tests/odd_photos.py" odd
ends 1 paceline predict run odd --output-dir answers | tee predict.txt
ends 0 paceline predict run "$data/val2017" --output-dir on-val --image-ids "$data/annotations/instances_val2017.json" | tail -3
test -s on-val/coco_results.json

echo; echo "== report, list, runs"
ends 0 paceline report run
[ -n "${SHORT:-}" ] || ends 0 paceline list recipes | head -5
ends 0 paceline runs .
[ -n "${SHORT:-}" ] || ends 0 paceline weights inspect run/checkpoints/best
[ -n "${SHORT:-}" ] || ends 0 paceline weights convert run/checkpoints/best --format paceline --output ours.safetensors

echo; echo "== Python"
"$python" - "$data" <<'END'
import sys
from pathlib import Path

import paceline

photo = next(Path(sys.argv[1], "val2017").iterdir())
found = paceline.load("run").predict(photo)
print(f"{photo.name}: {len(found.scores)} objects, best {found.names[:1]}")
found.draw().save("drawn.jpg")
END
echo; echo "walk: done"
