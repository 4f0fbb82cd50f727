#!/usr/bin/env bash
# Writes the three locks; one set of versions, of which the smaller locks are parts. Arguments go to every resolution.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
  local lock=$1
  shift
  "${UV:-.venv/bin/uv}" pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
    --custom-compile-command "make lock" --output-file "requirements/$lock.lock" "$@"
}

compile dev --extra all --group dev "$@"
compile test --extra all --group test --constraints requirements/dev.lock
compile runtime --extra all --constraints requirements/dev.lock
