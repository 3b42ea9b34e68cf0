#!/usr/bin/env bash
# Writes what base and every overlay in deploy/ make of themselves into deploy/rendered/, so that they
# can be read, and applied where no kustomize is. Needs kubectl 1.27 or newer.
#
#   scripts/render.sh [FOLDER]    into FOLDER instead
set -euo pipefail
cd "$(dirname "$0")/../deploy"
into=${1:-rendered}
mkdir -p "$into"
kubectl kustomize base >"$into/base.yaml"
for overlay in overlays/*/; do
    kubectl kustomize "$overlay" >"$into/$(basename "$overlay").yaml"
done
