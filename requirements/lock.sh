#!/usr/bin/env bash
# Writes the locks: one set of versions, of which the smaller locks are subsets. Arguments are passed to every resolution.
# runtime: the package with all extras; image: with the extras avro, confluent and protobuf, for deploy/Dockerfile; build: the build backends of the wheel and of pyspark;
# release: the tools of `make wheels`; docs: the tools of `make docs`; go: the Go toolchain that builds a test helper if no Go is installed;
# spark: the package with the extra spark, half a gigabyte, for `make test-all` and deploy/spark/Dockerfile.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
  local lock=$1
  shift
  "${UV:-.venv/bin/uv}" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --custom-compile-command "make lock" --output-file "requirements/$lock.lock" "$@"
}

compile dev pyproject.toml --extra all --group dev "$@"
compile test pyproject.toml --extra all --group test --constraints requirements/dev.lock
compile runtime pyproject.toml --extra all --constraints requirements/dev.lock
compile image pyproject.toml --extra avro --extra confluent --extra protobuf --constraints requirements/dev.lock "$@"
compile build --group pyproject.toml:build --constraints requirements/dev.lock "$@"
compile release --group pyproject.toml:release --constraints requirements/dev.lock "$@"
compile docs --group pyproject.toml:docs --constraints requirements/dev.lock "$@"
compile spark pyproject.toml --extra spark --constraints requirements/dev.lock
compile go --group pyproject.toml:go "$@"
