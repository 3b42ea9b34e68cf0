#!/usr/bin/env bash
# Gives a FOCUS file of ours, with a row for every kind of line, to the specification's own validator. Fails
# where it finds what is not among the errors of its own that are known (KNOWN below).
#
#   scripts/focus.sh [FILE]    another file than the one that the tests of the report make
#
# Installs focus-validator into target/focus, with what scripts/focus-requirements.txt has. It needs Python 3.12 or
# 3.13: of the pyarrow that it asks for there is no wheel for a newer one. Where there is neither, Debian 13's
# Python 3.13 is unpacked beside it, and nothing of that is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/later.sh
. scripts/later.sh

validator=focus-validator==2.2.1
wanted=scripts/focus-requirements.txt
home=$PWD/target/focus
python=$home/python

# A Python that the validator runs on, as one program.
make_python() {
    local known debian=$home/debian/files
    for known in python3.13 python3.12; do
        # What it says that it is: a name may stand for what chooses among several.
        if known=$("$known" -c 'import sys; print(sys.executable)' 2>/dev/null) && [ -x "$known" ]; then
            ln -sf "$known" "$python"
            return
        fi
    done
    echo "focus: fetching Debian 13's Python into $home"
    unpack_later trixie "$home/debian" python3.13-minimal libpython3.13-minimal libpython3.13-stdlib libc6 \
        libexpat1 zlib1g libssl3t64 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libgcc-s1 libstdc++6
    # With the C library that it was built for.
    printf '#!/bin/sh\nPYTHONHOME=%s exec %s --argv0 "$0" --library-path %s %s "$@"\n' "$debian/usr" \
        "$(find "$debian/usr/lib" -name 'ld-linux-*.so.*' | head -n1)" \
        "$(dirname "$(find "$debian/usr/lib" -name libc.so.6)")" "$debian/usr/bin/python3.13" >"$python"
    chmod +x "$python"
}

install() {
    local pip=("$python" -m pip install -q --disable-pip-version-check --root-user-action ignore
        --prefer-binary --target "$home/packages")
    rm -rf "$home"
    mkdir -p "$home"
    make_python
    echo "focus: installing $validator into $home"
    python3 -m pip install -q --disable-pip-version-check --target "$home/pip" pip
    PYTHONPATH=$home/pip "${pip[@]}" -r "$wanted"
    PYTHONPATH=$home/pip "${pip[@]}" --no-deps "$validator"
    cp "$wanted" "$home/installed.txt"
}

cmp -s "$wanted" "$home/installed.txt" || install
file=${1:-$home/focus.csv}
if [ $# = 0 ]; then
    GPUFLEET_FOCUS_FILE=$file cargo test -q -p gpufleet-analysis --lib the_focus_file_has_a_right_row >/dev/null
fi
file=$(realpath "$file")

# What of the specification is for whom it applies to. Not ours: names of billing accounts and reservations of
# capacity, of which nothing is told.
criteria=AVAILABILITY_ZONE_SUPPORTED,COMMITMENT_DISCOUNT_SUPPORTED,MULTIPLE_PRICING_CATEGORIES_SUPPORTED
criteria+=,NEGOTIATED_PRICING_SUPPORTED,PUBLIC_PRICE_LIST_SUPPORTED,USAGE_MEASUREMENT_SUPPORTED
criteria+=,UNIT_PRICING_SUPPORTED,SUB_ACCOUNT_SUPPORTED,BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED
criteria+=,RESOURCE_TYPE_ASSIGNMENT_SUPPORTED,REGION_SUPPORTED,TAGGING_SUPPORTED

# Errors of the validator: it wants an invoice of charges that are on none, and a status of commitments for
# charges that have nothing to do with one; with the rules that these are a part of.
KNOWN="CommitmentDiscountStatus-C-000-C CommitmentDiscountStatus-C-002-C CommitmentDiscountStatus-C-004-C
CostAndUsage-D-000-M CostAndUsage-D-002-M InvoiceId-C-004-C InvoiceId-C-005-C"

# It looks for a table of its own by a path that begins at the folder that its package is in, and ends well
# whatever it finds.
said=$home/said.txt
(cd "$home/packages" && PYTHONPATH=$home/packages "$python" -m focus_validator.main --data-file "$file" \
    --validate-version 1.2 --block-download --applicability-criteria "$criteria") >"$said"
grep -m1 '^Total:' "$said" || {
    echo "focus: the validator said nothing: $said" >&2
    exit 1
}
failed=$(sed -n 's/^❌ \([^:]*\):.*/\1/p' "$said" | sort -u)
new=$(comm -23 <(echo "$failed") <(tr ' ' '\n' <<<"$KNOWN" | sort -u) | sed '/^$/d')
if [ -n "$new" ]; then
    grep -F "$new" "$said" | cut -c1-300
    echo "focus: not among the known errors of the validator: $(tr '\n' ' ' <<<"$new")" >&2
    exit 1
fi
echo "focus: nothing but its known errors: $(tr '\n' ' ' <<<"$failed")"
