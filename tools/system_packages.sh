#!/usr/bin/env bash
# What `make test-system` needs from the system: a PostgreSQL server. Installs what is missing, says nothing otherwise.
# Safe to run again; needs no terminal. Exit 7, with what to do, where it may not install.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

has_postgresql() { compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null; }

if has_postgresql; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    say "error: PostgreSQL is not installed, and only root may install it."
    say "  Run: sudo apt-get install -y postgresql    (any package that brings initdb and pg_ctl will do)"
    exit 7
fi
if ! command -v apt-get >/dev/null; then
    say "error: PostgreSQL is not installed, and this system has no apt-get to install it with."
    say "  Install a package that brings initdb and pg_ctl, then run make test-system again."
    exit 7
fi
say "system packages: installing postgresql"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { apt-get install -y --no-install-recommends postgresql >"$log" 2>&1 </dev/null; }
# The package lists of a fresh image are empty or old: they are read again only when the first try fails.
if ! install && ! { apt-get update >"$log" 2>&1 </dev/null && install; }; then
    cat "$log" >&2
    say "error: apt-get could not install postgresql; what it said is above."
    exit 7
fi
# Debian starts a server of its own; the tests start theirs, on a port and in a directory of their own.
if ! has_postgresql; then
    say "error: postgresql is installed, but there is no initdb in /usr/lib/postgresql/*/bin."
    exit 7
fi
