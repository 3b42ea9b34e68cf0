#!/usr/bin/env bash
# Prints which crates of others are in agent, server and client, one a line (name, version, licence), then the texts of
# their licences, each once behind all files that have it.
#
# A text is a file in a crate's source that is called so, also where the source brings a library of somebody else. What cargo
# tree has read lies in cargo's registry; nothing is compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
# The same order everywhere.
export LC_ALL=C

crates=$(cargo tree --locked --edges normal --prefix none --format '{p} {l}' \
    -p gpufleet-agent -p gpufleet-server -p gpufleet-cli |
    sed '/^$/d; / (\//d; s/ (\*)$//; s/ (proc-macro)//' | sort -u)
printf '%s\n' "$crates"

sources=${CARGO_HOME:-$HOME/.cargo}/registry/src
folders=()
while read -r name version _; do
    found=("$sources"/*/"$name-${version#v}")
    if [ ! -d "${found[0]}" ]; then
        echo "notices: no source of $name $version in $sources: cargo fetch gets it" >&2
        exit 1
    fi
    folders+=("${found[0]}")
done <<<"$crates"

# texts: every text with its sum, in the order of the crates.
texts() {
    find "${folders[@]}" -type f ! -name '*.rs' \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \
        -o -iname 'copyright*' -o -iname 'unlicense*' -o -ipath '*/licen[cs]es/*' \) -print0 |
        sort -z | xargs -0 -r sha256sum
}

{
    printf '%s\n\n' "$crates"
    texts
} |
    awk '
        # The crates end with an empty line.
        /^$/ {
            are_texts = 1
            next
        }
        !are_texts {
            crate = $1 "-" substr($2, 2)
            order[++crates] = crate
            line[crate] = $0
            next
        }
        {
            path = substr($0, 67)
            place = path
            sub(/^.*\/registry\/src\/[^\/]*\//, "", place)
            has[substr(place, 1, index(place, "/") - 1)] = 1
            if (!($1 in files)) {
                texts[++count] = $1
                from[$1] = path
            }
            files[$1] = files[$1] place "\n"
        }
        END {
            rule = sprintf("%80s", "")
            gsub(/ /, "=", rule)
            print "\n" rule "\nThese bring no text; what their licence says stands below or in LICENSE:\n"
            for (at = 1; at <= crates; at++) if (!(order[at] in has)) print line[order[at]]
            for (at = 1; at <= count; at++) {
                print "\n" rule "\n" files[texts[at]]
                while ((getline text < from[texts[at]]) > 0) {
                    sub(/\r$/, "", text)
                    print text
                }
                close(from[texts[at]])
            }
        }'
