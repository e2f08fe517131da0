#!/usr/bin/env bash
# What `make test-system` needs from the system: PostgreSQL, Slurm with its database, a sandbox, a browser. Installs what is missing,
# says nothing when nothing is. Safe to run again; needs no terminal. Exit 7, with what to do, where it may not install.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null; }
has_postgresql() { compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || has initdb; }
# Daemons lie where the path of a user may not look.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

missing=()
needs() { missing+=("$@"); }
has_postgresql || needs postgresql
has slurmctld || needs slurmctld
has slurmd || needs slurmd
{ has sbatch && has squeue && has sacct && has scontrol; } || needs slurm-client
has slurmdbd || needs slurmdbd
has munged || needs munge
{ has mariadbd && has mariadb-install-db; } || needs mariadb-server
has bwrap || needs bubblewrap
{ has chromium || has google-chrome; } || needs chromium

if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    say "error: ${missing[*]}: not installed, and only root may install it."
    say "  Run: sudo apt-get install -y --no-install-recommends ${missing[*]}"
    exit 7
fi
if ! has apt-get; then
    say "error: ${missing[*]}: not installed, and this system has no apt-get to install it with."
    say "  Install what your system calls these packages, then run make test-system again."
    exit 7
fi
say "system packages: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 </dev/null; }
# The package lists of a fresh image are empty or old: they are read again only when the first try fails.
if ! install && ! { apt-get update >"$log" 2>&1 </dev/null && install; }; then
    cat "$log" >&2
    say "error: apt-get could not install ${missing[*]}; what it said is above."
    exit 7
fi
# Debian starts servers of its own; the tests start theirs, on ports and in directories of their own.
if ! has_postgresql; then
    say "error: postgresql is installed, but there is no initdb in /usr/lib/postgresql/*/bin."
    exit 7
fi
for program in slurmctld slurmd slurmdbd munged mariadbd sbatch; do
    if ! has "$program"; then
        say "error: the packages are installed, but there is no $program on the path."
        exit 7
    fi
done
