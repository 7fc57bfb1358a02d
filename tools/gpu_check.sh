#!/usr/bin/env bash
# Check fuzzcompile on a CUDA machine: doctor, tests marked cuda, compile and replay times, a campaign, triage of
# given cases, and what was found for targets without a GPU.
#
#   tools/gpu_check.sh OUTDIR [FOLDER_OF_CASES] [--findings CORPUS|FOLDER_OF_EXPORTS]
#
# Needs a CUDA GPU, Python 3.11+, torch 2.11+ built for CUDA and the packages of pyproject.toml; no network.
# Takes less than ten minutes. Writes doctor.json, tests.txt, compile.json, campaign.json, confirmed.json,
# confirmed.md, triage.jsonl, times.json, environment.json and summary.md to OUTDIR. Exit status: 0 all steps ran, 1 a step failed, 2 wrong
# usage, 3 no GPU.
set -uo pipefail
unset CDPATH

findings=
if [ $# -ge 3 ] && [ "${*: -2:1}" = --findings ]; then
    findings=${*: -1}
    case $findings in
        *://*) ;; # a corpus by its URL
        *)
            if [ ! -e "$findings" ]; then
                echo "gpu_check: there is no $findings; give a corpus or a folder of exported findings." >&2
                exit 2
            fi
            findings=$(cd -- "$(dirname -- "$findings")" && pwd)/$(basename -- "$findings") || exit 2
            ;;
    esac
    set -- "${@:1:$#-2}"
fi
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: tools/gpu_check.sh OUTDIR [FOLDER_OF_CASES] [--findings CORPUS|FOLDER_OF_EXPORTS]" >&2
    exit 2
fi
cases=
if [ $# -eq 2 ]; then
    if [ ! -d "$2" ]; then
        echo "gpu_check: $2 is no folder; give a folder of cases." >&2
        exit 2
    fi
    cases=$(cd -- "$2" && pwd) || exit 2
fi
root=$(cd -- "$(dirname -- "$0")/.." && pwd)
mkdir -p -- "$1" || exit 2
out=$(cd -- "$1" && pwd) || exit 2
python=${PYTHON:-python3}
# A path is named from where the caller stands, a command by its name.
case $python in */*) python=$(cd -- "$(dirname -- "$python")" && pwd)/$(basename -- "$python") ;; esac
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
cd "$root" || exit 2

# The limits add up to less than ten minutes: 30 + 15 + 110 + 60 + 40 + 240 before triage, 2 s of grace for each
# step, triage until 568 s have passed, 20 for the summary. Findings take their time from the campaign.
budget=3m campaign_limit=240 findings_limit=0
if [ -n "$findings" ]; then budget=90s campaign_limit=128 findings_limit=110; fi
if ! timeout --kill-after=2 30 "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
    2>"$out/cuda.txt"; then
    echo "gpu_check: this machine has no CUDA GPU that torch can use; run it on one that has." >&2
    exit 3
fi

status=0
step() { # step NAME SECONDS OUTPUT COMMAND...: run a command under a limit, keep what it prints
    local name=$1 limit=$2 file=$3
    shift 3
    local start=$SECONDS rc=0
    timeout --kill-after=2 "$limit" "$@" >"$out/$file" 2>"$out/$name.log" || rc=$?
    echo "$name $rc $((SECONDS - start))" >>"$out/steps.txt"
    echo "gpu_check: $name ended with $rc after $((SECONDS - start)) s" >&2
    return $rc
}

# What an earlier check left would be summed up as this one's.
rm -f "$out"/{steps.txt,environment.json,doctor.json,tests.txt,compile.json,campaign.json,triage.jsonl,confirmed.json,confirmed.md}
step environment 15 environment.json "$python" -c '
import json
import torch
from fuzzcompile.run.device import Numerics, describe_environment
print(json.dumps({**describe_environment(torch.device("cuda:0")), "numerics": Numerics().to_json()}, indent=1))
' || status=1
step doctor 110 doctor.json "$python" -m fuzzcompile doctor --device cuda --corpus "$out/corpus.db" --json || status=1
# Of the files that have such tests alone: to import all of them takes 20 s on a free machine, and a minute on a busy one.
mapfile -t marked < <(grep -rl --include="test_*.py" "mark\.cuda" tests)
step tests 60 tests.txt "$python" -m pytest "${marked[@]}" -m "cuda and not slow" -q -p no:cacheprovider || status=1
step times 40 compile.json "$python" tools/gpu_times.py --device cuda || status=1
step campaign "$campaign_limit" campaign.json "$python" -m fuzzcompile run --budget "$budget" --device cuda \
    --corpus "$out/corpus.db" --drafts "$out/drafts" --json || status=1
if [ -n "$findings" ]; then
    # A finding that the GPU refutes is a result, not a failure of the check.
    step findings "$findings_limit" findings.txt "$python" tools/gpu_findings.py "$findings" "$out"
    [ -s "$out/confirmed.json" ] || status=1
fi
if [ -n "$cases" ]; then
    # A bug (1) or a case that cannot be judged (3) is a result here, not a failure of the check.
    step triage $((568 - SECONDS)) triage.jsonl \
        "$python" -m fuzzcompile triage "$cases" --device cuda --workers 4 --timeout 60 --json
    [ -s "$out/triage.jsonl" ] || status=1
fi
timeout --kill-after=2 20 "$python" tools/gpu_summary.py "$out" || status=1
exit $status
