#!/usr/bin/env bash
# Make .venv and install Charter into it: tools/setup.sh EXTRAS (run, or run,dev).
# Needs Python >= 3.11 and pip only. Safe to run again at any time, also after it was interrupted.
#
#   PYTHON=/path/to/python   the interpreter to use (default: python3.11, python3.12, ... python3)
#   TORCH_INDEX=URL          where to take torch from (default: see torch_index below)
set -euo pipefail
cd "$(dirname "$0")/.."
extras=${1:-run}
venv=.venv
torch=$(grep '^torch==' constraints.txt)

say() { printf '%s\n' "$*" >&2; }

recent_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if recent_enough "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
    say "error: Charter needs Python 3.11 or newer; tried ${PYTHON:-python3.11, python3.12, python3.13, python3}."
    say "  Install it (Debian 12: apt install python3 python3-pip), or name one: make demo PYTHON=/path/to/python3.11"
    exit 7
}

# Debian ships `venv` without `ensurepip` unless python3-venv is installed; the system's pip can fill the gap.
make_venv() {
    local python
    python=$(find_python)
    say "setup: $venv with $("$python" --version)"
    if "$python" -c 'import ensurepip' >/dev/null 2>&1; then
        "$python" -m venv "$venv"
    elif "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --without-pip "$venv"
        "$python" -m pip --python "$venv/bin/python" --quiet install pip
    else
        say "error: $python has neither ensurepip nor pip, so no virtual environment can be made."
        say "  Debian: apt install python3-venv   (or python3-pip)"
        exit 7
    fi
}

# On a machine without an NVIDIA device the default Linux wheel would bring gigabytes of CUDA libraries along.
# The CPU index is used there if it answers; otherwise pip's own configuration decides.
torch_index() {
    local cpu=https://download.pytorch.org/whl/cpu
    if [ -n "${TORCH_INDEX:-}" ]; then
        printf '%s' "--extra-index-url $TORCH_INDEX"
    elif [ ! -e /dev/nvidia0 ] && "$venv/bin/python" - "$cpu/torch/" 2>/dev/null <<'PY'; then
import sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=5).close()
PY
        printf '%s' "--extra-index-url $cpu"
    fi
}

install() { "$venv/bin/python" -m pip install --quiet --retries 8 --timeout "${PIP_DEFAULT_TIMEOUT:-60}" --constraint constraints.txt "$@"; }

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    [ ! -e "$venv" ] || say "setup: $venv holds no working pip; making it anew"
    rm -rf "$venv"
    make_venv
fi
if ! "$venv/bin/python" -c "import torch; assert torch.__version__.split('+')[0] == '${torch#torch==}'" 2>/dev/null; then
    say "setup: $torch (the largest download)"
    # shellcheck disable=SC2046
    install $(torch_index) "$torch"
fi
say "setup: charter[$extras]"
# shellcheck disable=SC2046
install $(grep -E '^(hatchling|hatch-fancy-pypi-readme)==' constraints.txt)
install --no-build-isolation --editable ".[$extras]"
