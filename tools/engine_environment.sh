#!/usr/bin/env bash
# Make .engines/NAME, an environment of its own for an engine of another project: tools/engine_environment.sh NAME ...
# Each has its pinned packages in tools/engines/NAME.txt, since engines cannot live in one environment. A first line
# `# torch` there asks for the CPU wheel of torch that constraints.txt pins. Safe to run again: nothing is done twice.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || { echo "usage: tools/engine_environment.sh NAME ...; one of: $(cd tools/engines && ls -- *.txt | sed 's/[.]txt$//' | tr '\n' ' ')" >&2; exit 2; }

for name in "$@"; do
    wanted=tools/engines/$name.txt venv=.engines/$name
    [ -f "$wanted" ] || { echo "error: there is no $wanted" >&2; exit 2; }
    if cmp -s "$wanted" "$venv/installed.txt"; then
        continue
    fi
    echo "engine environment: $venv" >&2
    rm -rf "$venv"
    .venv/bin/python -m venv "$venv"
    install() { "$venv/bin/python" -m pip install --quiet --retries 8 --timeout "${PIP_DEFAULT_TIMEOUT:-60}" "$@"; }
    if head -n 1 "$wanted" | grep -q '^# torch'; then
        index=()
        [ -e /dev/nvidia0 ] || [ -z "${TORCH_INDEX:-}" ] || index=(--extra-index-url "$TORCH_INDEX")
        install "${index[@]}" "$(grep '^torch==' constraints.txt)" setuptools wheel
    fi
    # `# no-deps` lines name packages whose requirements need a GPU, or are not needed to read their configuration.
    sed -n 's/^# no-deps //p' "$wanted" >"$venv/no-deps.txt"
    DS_BUILD_OPS=0 install --no-build-isolation -r "$wanted"
    if [ -s "$venv/no-deps.txt" ]; then
        install --no-deps --no-build-isolation -r "$venv/no-deps.txt"
    fi
    cp "$wanted" "$venv/installed.txt"
done
