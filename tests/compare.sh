#!/usr/bin/env bash
# Puts this program and its peers before one vendor, and prints what each did: see the chapter `compare` of the manual.
#   bash tests/compare.sh [--program PATH] [--only NAME,...] [--seconds N] [--write]
# What the peers are is fetched with apt, pip, npm and go into target/tmp/compare, and nothing of it is installed. Needs
# python3 with pip, redis-server and, for some peers, node and go. What cannot be fetched is named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for tool in python3 redis-server; do
    command -v "$tool" >/dev/null || { echo "$tool is missing: install it, as with apt install $tool" >&2; exit 1; }
done
export PYTHONDONTWRITEBYTECODE=1
exec python3 tests/compare/main.py "$@"
