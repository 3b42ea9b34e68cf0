"""`python -m gpufleet listen`: shows what training processes on this machine say, without an agent.

    python -m gpufleet listen /tmp/hooks.sock
    GPUFLEET_HOOKS_SOCKET=/tmp/hooks.sock python train.py

One line of JSON a second and process, until Ctrl-C.
"""

import json
import sys
import time


def main(arguments):
    """Runs the command; its exit status."""
    if len(arguments) != 2 or arguments[0] != "listen":
        print(__doc__.strip(), file=sys.stderr)
        return 2
    from gpufleet import _native

    listener = _native.Listener(arguments[1])
    print(f"listening at {arguments[1]}", file=sys.stderr, flush=True)
    try:
        while True:
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                listener.turn(max(0.0, until - time.monotonic()))
            for snapshot in listener.snapshots():
                print(json.dumps(snapshot), flush=True)
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
