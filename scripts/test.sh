#!/usr/bin/env bash
# Runs every check, in stages, and ends with a table of what each took and may take.
#
#   scripts/test.sh                 all stages
#   scripts/test.sh build unit      only these: setup build unit fuzz lints end-to-end browser
#                                   hooks-setup hooks torch; and beside them postgres, which runs
#                                   on PostgreSQL what end-to-end runs on SQLite alone, and days,
#                                   which lives a thousand bad days where unit lives 120
#
# A stage that fails or takes longer than its budget (seconds, on 2 cores) fails the run.
# The full output of each stage is kept in target/test-logs/.
set -uo pipefail
cd "$(dirname "$0")/.."

# Budgets of the design, in seconds: setup 300, build 480, unit 600, fuzz 120, lints 300, end to end 600,
# browser 300, hooks and torch together 300 (torch has what hooks leave) and 300 to install torch;
# all of it 2700: no run may need all that each stage may.
budget_all=2700
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"
export NEXTEST_HIDE_PROGRESS_BAR=1
logs=target/test-logs
mkdir -p "$logs"
wanted=("$@")
rows=()
not_run=()
failed=0
passed_tests=0
failed_tests=0
# Seconds of the last stage that ran.
took=0

stage_wanted() {
    [ ${#wanted[@]} -eq 0 ] && return 0
    local name
    for name in "${wanted[@]}"; do [ "$name" = "$1" ] && return 0; done
    return 1
}

# stage NAME BUDGET COMMAND...: runs the command, keeps its time and verdict.
stage() {
    local name=$1 budget=$2 begin seconds verdict=passed
    shift 2
    stage_wanted "$name" || return 0
    echo
    echo "==== $name (budget ${budget} s)"
    begin=$(date +%s)
    "$@" 2>&1 | tee "$logs/$name.log"
    local status=${PIPESTATUS[0]}
    seconds=$(($(date +%s) - begin))
    took=$seconds
    count_tests "$logs/$name.log"
    mapfile -t -O "${#not_run[@]}" not_run < <(grep -ah 'NOT RUN' "$logs/$name.log" | sort -u)
    if [ "$status" -ne 0 ]; then
        verdict=FAILED
    elif [ "$seconds" -gt "$budget" ]; then
        verdict="OVER BUDGET"
    fi
    [ "$verdict" = passed ] || failed=1
    rows+=("$(printf '%-12s %8d %8d  %s' "$name" "$seconds" "$budget" "$verdict")")
    return "$status"
}

# Adds up what nextest ("N tests run: N passed, N failed"), cargo test ("N passed; N failed") and
# Python's unittest ("Ran N tests", "FAILED (failures=N, errors=N)") say.
count_tests() {
    local good bad
    good=$(grep -aE '^ *Summary |^test result:' "$1" | grep -aoE '[0-9]+ passed' | awk '{n += $1} END {print n + 0}')
    bad=$(grep -aE '^ *Summary |^test result:' "$1" | grep -aoE '[0-9]+ (failed|timed out)' | awk '{n += $1} END {print n + 0}')
    local ran wrong
    ran=$(awk '/^Ran [0-9]+ tests? in / {n += $2} END {print n + 0}' "$1")
    wrong=$(grep -aE '^FAILED \(' "$1" | grep -aoE '(failures|errors)=[0-9]+' | awk -F= '{n += $2} END {print n + 0}')
    good=$((good + ran - wrong))
    bad=$((bad + wrong))
    passed_tests=$((passed_tests + good))
    failed_tests=$((failed_tests + bad))
}

have_nextest() {
    cargo nextest --version >/dev/null 2>&1
}

# The test binaries that have a stage of their own.
own_stage='end_to_end|house_rules|browser|torch|fuzz'

# Names of every integration test binary that has no stage of its own.
other_test_binaries() {
    cargo metadata --no-deps --offline --format-version 1 | python3 -c "
import json, re, sys
for package in json.load(sys.stdin)['packages']:
    for target in package['targets']:
        if 'test' in target['kind'] and not re.fullmatch(r'$own_stage', target['name']):
            print('--test', target['name'])"
}

# All but the benches: no test runs them, and the lints check that they compile.
build() {
    cargo build --workspace --lib --bins --tests
}

unit() {
    if have_nextest; then
        cargo nextest run --workspace --no-fail-fast -E "not binary(/^($own_stage)\$/)"
    else
        # shellcheck disable=SC2046
        cargo test --workspace --no-fail-fast --lib --bins $(other_test_binaries)
    fi
}

# one_binary NAME [AT ONCE]: one test binary, its tests one after the other unless told, so that each
# has both cores.
one_binary() {
    if have_nextest; then
        cargo nextest run --workspace --no-fail-fast -j"${2:-1}" -E "binary($1)"
    else
        cargo test --workspace --no-fail-fast --test "$1" -- --test-threads="${2:-1}"
    fi
}

lints() {
    cargo fmt --all --check &&
        cargo clippy --workspace --all-targets --features gpufleet-tests/bench -- -D warnings &&
        one_binary house_rules
}

# Ten at once: most of their time is waiting for ticks and commits.
end_to_end() {
    one_binary end_to_end 10
}

# What `end-to-end` runs on SQLite alone, on PostgreSQL; with what it runs on both that is all of it.
end_to_end_on_postgres() {
    export GPUFLEET_TEST_DATABASE=postgres
    if have_nextest; then
        cargo nextest run --workspace --no-fail-fast -j10 \
            -E 'binary(end_to_end) and not test(/::on_(sqlite|postgres)$/)'
    else
        cargo test --workspace --no-fail-fast --test end_to_end -- --test-threads=10 \
            --skip ::on_sqlite --skip ::on_postgres
    fi
}

# A thousand days of each kind, one kind after the other: each has a thread for either core.
bad_days() {
    export GPUFLEET_TEST_DAYS=1000
    if have_nextest; then
        cargo nextest run --workspace --no-fail-fast -j1 -E 'binary(bad_days) and test(/^(after|on)_bad_days/)'
    else
        cargo test --workspace --no-fail-fast --test bad_days -- --test-threads=1 bad_days
    fi
}

# Three at once: they wait for ticks and for the page more than they compute.
browser() {
    one_binary browser 3
}

# Two at once; the one that is about pace has both cores to itself, which cargo test cannot be told.
torch() {
    if have_nextest; then one_binary torch 2; else one_binary torch; fi
}

# The stand-in of the build before it, where there was one.
hooks() {
    stage_wanted build && export GPUFLEET_STANDIN_CUDA="${CARGO_TARGET_DIR:-$PWD/target}/debug/libgpufleet_standin_cuda.so"
    scripts/hooks.sh test
}

stop_postgres() {
    scripts/postgres.sh stop
}
trap stop_postgres EXIT

begin_all=$(date +%s)
if stage setup 300 scripts/setup.sh test && stage build 480 build; then
    if stage_wanted unit || stage_wanted end-to-end || stage_wanted browser || stage_wanted postgres; then
        eval "$(scripts/postgres.sh start)" || failed=1
    fi
    stage unit 600 unit
    stage fuzz 120 one_binary fuzz
    stage lints 300 lints
    stage end-to-end 600 end_to_end
    [ ${#wanted[@]} -eq 0 ] || { stage postgres 600 end_to_end_on_postgres; stage days 1200 bad_days; }
    stage browser 300 browser
    stage hooks-setup 300 scripts/hooks.sh setup && took=0 && stage hooks 300 hooks &&
        stage torch $((300 - took)) torch
else
    rows+=("everything after it was not run")
fi

echo
printf '%-12s %8s %8s  %s\n' stage seconds budget verdict
printf '%s\n' "${rows[@]}"
seconds_all=$(($(date +%s) - begin_all))
verdict_all=""
[ "$seconds_all" -gt "$budget_all" ] && verdict_all="OVER BUDGET" && failed=1
printf '%-12s %8d %8d  %s\n' all "$seconds_all" "$budget_all" "$verdict_all"
echo
# What passed because something could not be fetched did not pass.
[ ${#not_run[@]} -eq 0 ] || printf '%s\n' "${not_run[@]}"
[ "$failed" -ne 0 ] && [ "$failed_tests" -eq 0 ] && echo "a stage failed; see the table and $logs"
echo "$passed_tests passed, $failed_tests failed"
exit "$failed"
