#!/bin/sh
# What only a machine with an NVIDIA GPU can show, in under ten minutes, without a network and with nothing
# installed but the driver and python3. `make gpu-pack` puts everything that it needs into
# target/gpu-pack.tar.gz; unpack it there and run `tests/gpu/run.sh`.
#
#   tests/gpu/run.sh [--into FOLDER] [--short]
#
# Prints a table, and leaves in FOLDER (default: gpu-results) the table as JSON, every reading of the
# catalog with its value or reason, the probe's results, a recording, and logs. Exits 1 if a row FAILED; a
# row that was NOT RUN says why and fails nothing.
#
# What is to be kept of it: recording.gz as tests/recordings/CARD-DRIVER.gz, the figures in docs/performance.md.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/suite.py" "$@"
