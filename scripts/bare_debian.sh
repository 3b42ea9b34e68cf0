# What image.sh and try_package.sh share. Sourced, not run.

# bare_debian TREE: puts a Debian 12 that has nothing but its base into a folder. Needs root and debootstrap.
bare_debian() {
    local log
    log=$(mktemp)
    if ! debootstrap --variant=minbase bookworm "$1" >"$log" 2>&1; then
        tail -5 "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}
