#!/usr/bin/env bash
# Run the tests that a change must pass (`make test`), with --all every test (`make test-all`), or with --sample a tenth of
# what the first leaves out, by the commit (`.ci/run`): one pytest process per group of files, so that a group shares its
# devices and compiled programs, and at most JOBS (2) processes at once. Other arguments go to every pytest. What the first
# leaves out is said in tests/selection.py.
#
# Most of the time of a small test goes to LLVM. So the tests have XLA generate simple code, from the same partitioned and
# optimised program, but for those of what the generator decides (the group codegen). With --all and --sample whole models,
# recipes, pages and processes, too, take the code that users run. XLA_FLAGS, if set, is taken as it is by all.
#
#     tests/run.sh                                  all groups, and those that XLA partitions once more under Shardy
#     TEST_GROUPS="spmd+fsdp@shardy" tests/run.sh   only these: folders of one process, its part of several, partitioner
#     tests/run.sh --groups                         their names, --all --groups those of every test
#     tests/run.sh --passed                         how many groups of --all have passed on this tree
#
# --all resumes: tests/test-all.passed has a line for each group that passed, with the hash of spmd, fsdp and tests. A group
# whose hash is that of the tree is not run again.
set -uo pipefail
cd "$(dirname "$0")/.."
shopt -s nullglob

python=${PYTHON:-.venv/bin/python}
# torch on the CPU is what tests compare with. Its threads wait busily, a tenth of all, for cores that two groups share.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Groups, and the processes that tests start, import the same files: each is compiled once.
export PYTHONDONTWRITEBYTECODE=
simple="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# XLA ends the process at a flag that it does not know, and jaxlib 0.11 has dropped this one.
jaxlib=$("$python" -c 'import importlib.util; print(importlib.util.find_spec("jaxlib").submodule_search_locations[0])')
if grep -qzx xla_cpu_use_fusion_emitters "$jaxlib"/*.so; then simple+=" --xla_cpu_use_fusion_emitters=false"; fi
small=" core packages library sweep plans spmd fsdp golden "
passed=tests/test-all.passed

# Balanced by tests/baseline/durations.tsv.gz; the longest first.
usual="whole packages library+sweep+plans core:1of2 core:2of2 core+packages+library@shardy codegen"
mode=--quick
tree() { # the hash of what the tests run
    git ls-files -z --cached --others --exclude-standard spmd fsdp tests ":!$passed" | sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-12
}
ask=
if [[ ${1-} == --passed ]]; then
    ask=1
    set -- --all
fi
if [[ ${1-} == --all ]]; then
    usual="core:1of2 core:2of2 sweep core:1of2@shardy core:2of2@shardy library packages models:1of2 models:2of2 library@shardy
        packages@shardy plans processes rest frameworks+examples codegen"
    mode=
    shift
elif [[ ${1-} == --sample ]]; then
    usual="whole:1of2 core+packages+library+sweep+plans core+packages+library@shardy whole:2of2 codegen"
    mode=--sample
    shift
else
    small+="whole models processes rest frameworks examples "
fi
read -rd '' -a groups <<<"${TEST_GROUPS:-$usual}"
if [[ ${1-} == --groups ]]; then
    echo "${groups[@]}"
    exit
fi
hash=
if [[ -z $mode && $# -eq 0 && -z ${XLA_FLAGS+set} ]] && git rev-parse --git-dir >/dev/null 2>&1; then
    hash=$(tree)
    left=()
    for group in "${groups[@]}"; do
        line=$(awk -v group="$group" -v hash="$hash" '$1 == group && $2 == hash' "$passed" 2>/dev/null)
        if [[ -z $line ]]; then left+=("$group"); elif [[ -z $ask ]]; then echo "== $line"; fi
    done
    if [[ -n $ask ]]; then
        echo "make test-all: $((${#groups[@]} - ${#left[@]})) of ${#groups[@]} groups have passed on this tree ($hash);" \
            "on any: $(cut -d ' ' -f 3 "$passed" 2>/dev/null | sort | sed -n '1p;$p' | paste -sd ' ' | sed 's/ / to /')"
        exit
    fi
    groups=(${left[@]+"${left[@]}"})
fi
# A test that hangs says where each of its threads is and ends its group; so does, at last, a group.
limit=()
if command -v timeout >/dev/null; then limit=(timeout --signal=ABRT 75m); fi
patience=(-o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true)
logs=$(mktemp -d)
keep() { # writes the lines of the groups that passed into the file, in place of those that they had
    local new
    new=$(cat "$logs"/*.passed 2>/dev/null)
    if [[ -n $new ]]; then
        { echo "$new"; cat "$passed" 2>/dev/null; } | awk '!seen[$1]++' | sort >"$logs/all"
        mv "$logs/all" "$passed"
    fi
}
trap 'keep; rm -rf "$logs"' EXIT
versions=
if [[ -n $hash ]]; then
    versions=$("$python" -c 'import jax, platform, torch
print(f"Python {platform.python_version()}, torch {torch.__version__}, jax {jax.__version__}")')
fi

files() { # the files and folders of a part of a group; nullglob drops what does not exist
    case $1 in
        sweep | spmd | fsdp | models | plans | golden | processes | frameworks | examples) echo "tests/$1" ;;
        core) echo tests/{core,ops} ;;
        packages) echo tests/{adaptive,jobs,loops,manual,names,parallel,steps,tools} ;;
        library) echo tests/{spmd,fsdp,golden,properties} ;;
        whole) echo "$(files models) $(files processes) $(files frameworks) $(files examples) $(files rest)" ;;
        codegen) grep -rl "mark.codegen" tests/{core,ops} --include="test_*.py" ;;
        rest) echo tests/[r]ecipes tests/[d]ocs tests/[s]trangers tests/test_*.py ;;
        *)
            echo "tests/run.sh: no group '$1'; there are core, packages, library, codegen, sweep, spmd, fsdp, models, plans," \
                "golden, processes, frameworks, examples, rest and whole (models and these four), joined by +, a part of one" \
                "as core:1of2, each also with @shardy" >&2
            return 1
            ;;
    esac
}

# What no partitioner sees: torch's own habits around one device, signals and threads, what a file of programs must be.
# They run once.
around="aten/test_layouts base/test_forking base/test_interrupt base/test_tables graph/test_op programs/test_stored
    record/test_threads run/test_failing run/test_start run/test_thread_syncs torch_state/test_cpu_programs
    torch_state/test_device_module torch_state/test_generator torch_state/test_modules torch_state/test_settings"

run() { # one group in one process; its last line says how it ended
    local group=$1 partitioner=gspmd flags=${XLA_FLAGS-} folders part name found is_small=1 paths=""
    shift
    IFS=: read -r folders part <<<"${group%@*}"
    for name in ${folders//+/ }; do
        found=$(files "$name") || return 1
        paths+=" $found"
        if [[ $small != *" $name "* ]]; then is_small=; fi
    done
    # shellcheck disable=SC2086  # paths hold no blanks and must split
    if [[ -n $part ]]; then paths=$("$python" tests/parts.py ${mode/--sample/} "${part%of*}" "${part#*of}" $paths) || return 1; fi
    if [[ -z ${XLA_FLAGS+set} && -n $is_small ]]; then flags=$simple; fi
    case $folders in
        codegen) set -- -m codegen "$@" ;;
        *core*) set -- -m "not codegen" "$@" ;;
    esac
    if [[ $group == *@shardy ]]; then
        partitioner=shardy
        for name in $around; do set -- "$@" "--ignore=tests/core/$name.py"; done
    fi
    # shellcheck disable=SC2086
    XLA_FLAGS=$flags SPMD_PARTITIONER=$partitioner ${limit[@]+"${limit[@]}"} "$python" -m pytest -q -p no:cacheprovider \
        "${patience[@]}" $mode $paths "$@"
}

start() {
    run "$@" >"$logs/$1" 2>&1
    local code=$?
    if [ $code -eq 0 ]; then
        echo "== $1: $(tail -n 1 "$logs/$1")"
        if [[ -n $hash ]]; then
            echo "$1 $hash $(date -u +%F) $(tail -n 1 "$logs/$1" | tr -d =), $versions" >"$logs/$1.passed"
        fi
    else
        { echo "== $1: FAILED (exit $code)"; cat "$logs/$1"; } >"$logs/$1.shown"
        cat "$logs/$1.shown"
        # Said once more at the end, which a reader of a long log sees first: the tests that failed, or what ran where the
        # group was ended, by the innermost lines of ours.
        {
            echo "== $1: exit $code"
            grep -E "^(FAILED|ERROR) " "$logs/$1" || grep -E "^(Fatal|Current thread|Thread)|File .*/(tests|spmd|fsdp)/" "$logs/$1"
        } | cut -c 1-200 | head -n 30 >>"$logs/failures"
    fi
    return $code
}

failed=0
running=0
for group in "${groups[@]}"; do
    if [ "$running" -ge "${JOBS:-2}" ]; then
        wait -n || failed=1
        keep
        running=$((running - 1))
    fi
    start "$group" "$@" &
    running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
    wait -n || failed=1
    keep
    running=$((running - 1))
done
if [ $failed -ne 0 ]; then
    cat "$logs/failures"
    echo "== some tests failed"
    exit 1
fi
echo "== all tests passed"
