#!/usr/bin/env bash
# The demo: init, plan, run, report. Every step may be interrupted; the next call continues where the run stood.
set -euo pipefail
cd "$(dirname "$0")/.."
directory=${1:-demo}
charter=.venv/bin/charter

show() { printf '\n$ charter %s\n' "$*"; "$charter" "$@"; }

if [ ! -f "$directory/charter.yaml" ]; then
    show init --template cai-tiny "$directory"
fi
if [ ! -f "$directory/run/plan.json" ]; then
    show plan -C "$directory"
fi
show run -C "$directory" --yes || {
    status=$?
    printf '\nThe demo stopped (exit code %s, docs/reference/exit-codes.md). ' "$status" >&2
    printf 'make demo continues it, make demo-clean forgets it.\n' >&2
    exit "$status"
}
show report -C "$directory"
show report -C "$directory" --text
printf '\nThe report is %s. Try next:\n' "file://$PWD/$directory/report.html"
printf '  %-68s %s\n' \
    "$charter ui $directory" 'the run in a browser: curves, samples, costs' \
    "$charter samples -C $directory" 'what the models said' \
    "$charter plan sft Llama-3.1-8B --tokens 100M --on H100:8" 'what a real one takes'
