#!/usr/bin/env bash
# Check fuzzcompile on a CUDA machine: doctor, tests marked cuda, a campaign, triage of given cases.
#
#   tools/gpu_check.sh OUTDIR [FOLDER_OF_CASES]
#
# Needs a CUDA GPU, Python 3.11+, torch 2.11+ built for CUDA and the packages of pyproject.toml; no network.
# Takes at most ten minutes. Writes doctor.json, tests.txt, campaign.json, triage.jsonl, times.json,
# environment.json and summary.md to OUTDIR. Exit status: 0 all steps ran, 1 a step failed, 2 wrong usage,
# 3 no GPU.
set -uo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: tools/gpu_check.sh OUTDIR [FOLDER_OF_CASES]" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
cases=${2:-}
python=${PYTHON:-python3}
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
cd "$root" || exit 2

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>"$out/cuda.txt"; then
    echo "gpu_check: this machine has no CUDA GPU that torch can use; run it on one that has." >&2
    exit 3
fi

status=0
step() { # step NAME SECONDS OUTPUT COMMAND...: run a command under a limit, keep what it prints
    local name=$1 limit=$2 file=$3
    shift 3
    local start=$SECONDS rc=0
    timeout --kill-after=10 "$limit" "$@" >"$out/$file" 2>"$out/$name.log" || rc=$?
    echo "$name $rc $((SECONDS - start))" >>"$out/steps.txt"
    echo "gpu_check: $name ended with $rc after $((SECONDS - start)) s" >&2
    return $rc
}

rm -f "$out/steps.txt"
"$python" - >"$out/environment.json" <<'PY'
import json
import torch
from fuzzcompile.execution.device import Numerics
from fuzzcompile.execution.environment import describe
print(json.dumps({**describe(torch.device("cuda:0")), "numerics": Numerics().to_json()}, indent=1))
PY
step doctor 90 doctor.json "$python" -m fuzzcompile doctor --device cuda --corpus "$out/corpus.db" --json || status=1
step tests 120 tests.txt "$python" -m pytest -m cuda -q -p no:cacheprovider || status=1
step campaign 300 campaign.json "$python" -m fuzzcompile run --budget 3.5m --device cuda \
    --corpus "$out/corpus.db" --drafts "$out/drafts" --json || status=1
if [ -n "$cases" ]; then
    # A bug (1) or a case that cannot be judged (3) is a result here, not a failure of the check.
    step triage 100 triage.jsonl "$python" -m fuzzcompile triage "$cases" --device cuda --workers 4 --timeout 60 --json
    [ -s "$out/triage.jsonl" ] || status=1
fi
"$python" "$root/tools/gpu_summary.py" "$out" || status=1
exit $status
