#!/usr/bin/env bash
# A fleet under faults for minutes or hours, and a judge who reads what others recorded: see the manual's chapter `tested`.
#   bash tests/soak.sh --minutes 30 [--store redis|postgres|sqlite|memory:] [--seed 1] [--program target/release/ojs-throttle]
#   bash tests/soak.sh --planted NAME|all      the judge must find faults that are planted in the program
# Needs python3 (3.11), openssl, and the store's server. Ends with 1 if a promise was broken.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

program="" planted="" words=()
while [ $# -gt 0 ]; do
    case $1 in
    --program) program=$2; shift ;;
    --planted) planted=$2; shift ;;
    *) words+=("$1") ;;
    esac
    shift
done

if [ -n "$planted" ]; then
    exec python3 tests/soak/planted.py "$planted" ${program:+--program "$program"} "${words[@]}"
fi
if [ -z "$program" ]; then
    cargo build --release --locked --quiet
    program=target/release/ojs-throttle
fi
exec python3 tests/soak/soak.py --program "$(realpath "$program")" "${words[@]}"
