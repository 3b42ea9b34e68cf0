# For scripts to read in: packages of a later Debian, without installing any.

# unpack_later SUITE HOME PACKAGE...: what is in packages of a later Debian, into HOME/files. apt checks them
# as it checks all others.
unpack_later() {
    local suite=$1 home=$2 mirror package
    shift 2
    mkdir -p "$home"/{sources,lists/partial,cache/archives/partial}
    # shellcheck disable=SC2016 # apt's own variable
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$')
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$mirror" "$suite" \
        /usr/share/keyrings/debian-archive-keyring.gpg >"$home/sources/debian.sources"
    local apt=(apt-get -qq -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$home/sources"
        -o "Dir::State::Lists=$home/lists" -o "Dir::Cache=$home/cache" -o Acquire::Languages=none
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o "APT::Sandbox::User=$(id -un)")
    "${apt[@]}" update && (cd "$home" && "${apt[@]}" download "$@") || return
    for package in "$home"/*.deb; do dpkg-deb -x "$package" "$home/files"; done
}
