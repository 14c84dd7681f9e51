#!/usr/bin/env bash
# Make an environment named in tests/versions.txt: its Python, the versions of its line, and the library with the extras.
#
#     tests/environment.sh newest .venv-newest                        what the line `newest` says
#     TORCH=torch==2.15.0 tests/environment.sh newest .venv-newest    another torch, such as a CPU build of a folder
#     PYTHONS=3.12 tests/environment.sh newest .venv-newest           another Python than the first of the line
#
# An interpreter is tried and not just looked for: a shim of pyenv's stands on PATH also where nothing is behind it.
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:?expected a name of tests/versions.txt}
folder=${2:?expected the folder of the environment}
read -r _ minors extras torch pins <<<"$(grep -F "$name " tests/versions.txt | grep -v "^#" | head -n 1)" || true
if [ -z "${torch:-}" ]; then
    echo "tests/environment.sh: no '$name' in tests/versions.txt" >&2
    exit 1
fi
minors=${PYTHONS:-$minors}
tried=()
python=
for minor in ${minors//,/ }; do
    for command in "python$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$minor."*/bin/python; do
        tried+=("$command")
        if "$command" -c "import ensurepip, sys, venv; assert sys.version.startswith('$minor.')" 2>/dev/null; then
            python=$command
            break 2
        fi
    done
done
if [ -z "$python" ]; then
    echo "tests/environment.sh: no Python of $minors works here; tried: ${tried[*]}" >&2
    exit 1
fi

"$python" -m venv --clear "$folder"
pip=("$folder/bin/python" -m pip install --quiet)
# torch goes in alone: what follows is then resolved around the build that is there.
"${pip[@]}" "${TORCH:-$torch}"
# shellcheck disable=SC2086  # requirements hold no blanks and must split
"${pip[@]}" -e ".[$extras]" $pins
"$folder/bin/python" -c "
import importlib.metadata as metadata, platform
names = ('torch', 'jax', 'jaxlib', 'transformers', 'accelerate', 'lightning', 'trl', 'peft', 'diffusers', 'libtpu')
here = {one.name.lower(): one.version for one in metadata.distributions()}
print('== Python', platform.python_version(), *(f'{name} {here[name]}' for name in names if name in here), sep=', ')"
