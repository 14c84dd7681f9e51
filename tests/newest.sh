#!/usr/bin/env bash
# Make an environment of the newest Python, torch and jax that pyproject.toml allows, with everything installed into it,
# and the libtpu that this jax asks for: the tests plan for TPUs by it.
#
#     tests/newest.sh .venv-newest                          the newest that the registry offers
#     TORCH=torch==2.15.0 tests/newest.sh .venv-newest      another torch, such as a CPU build that a folder offers
#
# An interpreter is tried and not just looked for: a shim of pyenv's stands on PATH also where nothing is behind it.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:?expected the folder of the environment}
tried=()
python=
for minor in 13 12 11; do # as requires-python in pyproject.toml
    for command in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor."*/bin/python; do
        tried+=("$command")
        if "$command" -c "import ensurepip, sys, venv; assert sys.version_info[:2] == (3, $minor)" 2>/dev/null; then
            python=$command
            break 2
        fi
    done
done
if [ -z "$python" ]; then
    echo "tests/newest.sh: no Python of 3.11 to 3.13 works here; tried: ${tried[*]}" >&2
    exit 1
fi

"$python" -m venv --clear "$folder"
pip=("$folder/bin/python" -m pip install --quiet)
# torch goes in alone: what follows is then resolved around the build that is there.
"${pip[@]}" "${TORCH:-$(sed -n 's/^    "\(torch>=.*\)",$/\1/p' pyproject.toml)}"
"${pip[@]}" -e '.[test,recipes,tpu]'
"$folder/bin/python" -c "
import importlib.metadata as metadata, platform
versions = (f'{name} {metadata.version(name)}' for name in ('torch', 'jax', 'jaxlib', 'libtpu'))
print('== Python', platform.python_version(), *versions, sep=', ')"
