# What up.sh, down.sh and demo_fault.sh share. Sourced, not run; the working directory is the
# repository's root.
#
# Everything `make up` makes lies in .gpufleet/: server.db, spools, logs/, hooks/ with the socket of
# training processes, and run/ with one file per program (NAME.pid).
#
#   GPUFLEET_HOME       another folder than .gpufleet, absolute and empty: a second one beside the first
#   GPUFLEET_PROGRAMS   a folder with programs that were built already; else they are built

here=$PWD
home=${GPUFLEET_HOME:-$here/.gpufleet}
case $home in
/*) ;;
*)
    echo "GPUFLEET_HOME=$home: it must be an absolute path" >&2
    exit 1
    ;;
esac
# What says that a folder is of `make up`, and may be removed with all that is in it.
marker="$home/.made-by-make-up"
programs=${GPUFLEET_PROGRAMS:-target/fast}
run="$home/run"
logs="$home/logs"
hooks="$home/hooks"

# is_ours PID: whether the process with this id is one of our programs. Ids are used again, so a
# pid file alone proves nothing.
is_ours() {
    local program
    program=$(readlink "/proc/$1/exe" 2>/dev/null) || return 1
    case "${program##*/}" in
    gpufleet-*) return 0 ;;
    *) return 1 ;;
    esac
}

# stop_all: asks every program to stop, the senders before the server; kills what does not.
stop_all() {
    local name pid file waited
    # A name that an older version of these scripts started is stopped as well.
    for name in simulator agent $(cd "$run" 2>/dev/null && ls -- *.pid 2>/dev/null | sed 's/\.pid$//' | grep -vx server) server; do
        file="$run/$name.pid"
        [ -f "$file" ] || continue
        pid=$(cat "$file")
        if is_ours "$pid"; then
            kill -TERM "$pid" 2>/dev/null || true
            waited=0
            while is_ours "$pid" && [ "$waited" -lt 200 ]; do
                sleep 0.1
                waited=$((waited + 1))
            done
            if is_ours "$pid"; then
                echo "$name did not stop within 20 s and is killed"
                kill -KILL -- "-$pid" 2>/dev/null || kill -KILL "$pid" 2>/dev/null || true
            fi
        fi
        rm -f "$file"
    done
}

# is_made: whether the folder is of `make up`. The one in the repository is by its name.
is_made() {
    [ -f "$marker" ] || [ "$home" = "$here/.gpufleet" ]
}

# is_empty: whether nothing is in the folder, or it is not there.
is_empty() {
    [ ! -e "$home" ] || [ -z "$(ls -A "$home")" ]
}

# one_at_a_time: ends when another `make up` or `make down` starts and stops programs here.
one_at_a_time() {
    while :; do
        mkdir -p "$home"
        exec 9<"$home"
        flock --nonblock 9 || {
            echo "another make up or make down is at work here; wait for it" >&2
            exit 1
        }
        # A make down may have removed the folder meanwhile: then that is a lock on nothing.
        [ ! "$home" -ef /dev/fd/9 ] || return 0
    done
}

# start NAME COMMAND...: starts a program in a session of its own, its output in logs/NAME.log, and
# returns when the process is that program, or has ended: until then it is a shell, which is_ours
# does not know.
start() {
    local name=$1
    shift
    setsid "$@" >>"$logs/$name.log" 2>&1 </dev/null 9<&- &
    echo $! >"$run/$name.pid"
    until is_ours "$!" || ! kill -0 "$!" 2>/dev/null; do sleep 0.02; done
}

# answers NAME URL: waits until the program that was started answers there, whatever it says; ends
# when the program does, or after 90 s: a machine may do other things as well.
answers() {
    local waited=0
    until curl -sS -o /dev/null --max-time 2 "$2" 2>/dev/null; do
        must_run "$1"
        waited=$((waited + 1))
        [ "$waited" -lt 900 ] || {
            echo "$1 does not answer at $2 after 90 s; see $logs/$1.log" >&2
            exit 1
        }
        sleep 0.1
    done
    # Another program may have taken the port in between, and answer.
    must_run "$1"
}

# runs NAME: whether a program that was started still runs.
runs() {
    [ -f "$run/$1.pid" ] && is_ours "$(cat "$run/$1.pid")"
}

# must_run NAME: ends with the log's last lines when a program has ended.
must_run() {
    runs "$1" && return
    echo "$1 ended; the last lines of $logs/$1.log:" >&2
    tail -n 15 "$logs/$1.log" >&2
    exit 1
}

port_is_taken() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}
