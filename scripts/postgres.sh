#!/usr/bin/env bash
# A throw-away PostgreSQL on loopback for the tests.
#
#   eval "$(scripts/postgres.sh start)"    starts it and sets GPUFLEET_TEST_POSTGRES
#   scripts/postgres.sh stop               stops it and removes its files
#
# It trusts everybody on 127.0.0.1 and does not sync: for tests only.
set -euo pipefail
cd "$(dirname "$0")/.."

folder_file="$PWD/target/test-postgres.folder"

# PostgreSQL refuses to run as root: then it runs as the user its package made.
as_postgres() {
    if [ "$(id -u)" -eq 0 ]; then
        (cd / && su postgres -s /bin/sh -c "$(printf '%q ' "$@")")
    else
        "$@"
    fi
}

newest_bin() {
    ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1
}

start() {
    local bin folder port=15432
    bin="$(newest_bin)"
    [ -n "$bin" ] || {
        echo "postgres.sh: no PostgreSQL here: run scripts/setup.sh test" >&2
        exit 1
    }
    stop >&2
    folder="$(mktemp -d -t gpufleet-postgres-XXXXXX)"
    [ "$(id -u)" -eq 0 ] && chown postgres "$folder"
    while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    as_postgres "$bin/initdb" -D "$folder/data" -U postgres -A trust -E UTF8 --locale=C --no-sync >/dev/null
    as_postgres "$bin/pg_ctl" -s -w -D "$folder/data" -l "$folder/log" \
        -o "-c listen_addresses=127.0.0.1 -c port=$port -c unix_socket_directories=$folder -c fsync=off -c max_connections=200" \
        start >/dev/null
    mkdir -p target
    echo "$folder" >"$folder_file"
    echo "export GPUFLEET_TEST_POSTGRES=postgres://postgres@127.0.0.1:$port"
}

stop() {
    [ -f "$folder_file" ] || return 0
    local folder
    folder="$(cat "$folder_file")"
    if [ -f "$folder/data/postmaster.pid" ]; then
        as_postgres "$(newest_bin)/pg_ctl" -s -m immediate -D "$folder/data" stop || true
    fi
    case "$folder" in
    *gpufleet-postgres-*) rm -rf "$folder" ;;
    esac
    rm -f "$folder_file"
}

case "${1:-}" in
start) start ;;
stop) stop ;;
*)
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
