"""The second way: OTLP over HTTP, where no agent reads this process. Off unless an endpoint is given.

A thread sends the readings of now, and the steps and events since the last time, as an agent would; the
server takes all of it as claimed. Steps wait in the process' own memory while nobody answers; nothing
waits in a queue that grows, and the training thread never waits for any of it. At the end of the script
the thread has a moment to send how it ended. The ranks of a job begin together and lose the server
together: each sends at a moment of its own.
"""

import atexit
import base64
import json
import os
import platform
import random
import threading
import urllib.error
import urllib.parse
import urllib.request

from gpufleet._safe import FAILURES, debug, failed

#: Seconds from one sending to the next: a tick of an agent.
_PERIOD = 10.0

#: Longest pause after failures, seconds.
_LONGEST_PAUSE = 300.0

#: Seconds that one request may take, and that the end of the script may wait for the last ones.
_TIMEOUT, _LAST_TIMEOUT = 10.0, 3.0

#: Bytes read of an answer: a partial success names a few examples.
_ANSWER_BYTES = 65536

#: Answers that the same request will get again: it is given up. A route that is not there may come.
_HOPELESS = (400, 413, 415, 422)

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def settings(environ=None):
    """What the environment says: endpoint and the files of token and authority; None without endpoint.

    Raises ValueError where it cannot be used, with the way out.
    """
    environ = os.environ if environ is None else environ
    endpoint = environ.get("GPUFLEET_OTLP_ENDPOINT", "").rstrip("/")
    if not endpoint:
        return None
    address = urllib.parse.urlsplit(endpoint)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ValueError("GPUFLEET_OTLP_ENDPOINT is no address such as https://gpufleet:4318")
    if address.username or address.password:
        raise ValueError("GPUFLEET_OTLP_ENDPOINT holds a password: say a file in GPUFLEET_OTLP_TOKEN_FILE")
    token = environ.get("GPUFLEET_OTLP_TOKEN_FILE", "")
    if token and address.scheme == "http" and address.hostname not in _LOOPBACK:
        raise ValueError("a token is not sent without TLS: use https:// in GPUFLEET_OTLP_ENDPOINT")
    return {"endpoint": endpoint, "token_file": token, "ca_file": environ.get("GPUFLEET_OTLP_CA_FILE", "")}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token goes where it was meant to go."""

    def redirect_request(self, *_given):
        return None


class Sender:
    """Sends what one process says, from a thread of its own."""

    def __init__(self, recorder, endpoint, token_file="", ca_file="", period=_PERIOD):
        from gpufleet import _native

        self._recorder = recorder
        self._teller = _native.Teller(recorder)
        self._native = _native
        self._endpoint = endpoint
        self._token_file = token_file
        self._ca_file = ca_file
        self._period = period
        self._node = os.environ.get("NODE_NAME") or platform.node()
        self._opener = None
        self._pid = os.getpid()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpufleet-otlp", daemon=True)

    def start(self):
        """Begins, and has a moment at the end of the script."""
        self._thread.start()
        atexit.register(self.finish)

    def finish(self):
        """Sends what is left; waits for that as long as it may."""
        if os.getpid() == self._pid:
            self._over.set()
            self._thread.join(_LAST_TIMEOUT)

    def _run(self):
        pause, wait = self._period, random.uniform(0, self._period)
        while not self._over.wait(wait):
            pause, wait = self._next(pause, self._turn())
        self._turn(is_last=True)

    def _next(self, pause, went_well):
        """The pause after this one, and how long it is waited of it."""
        if went_well:
            return self._period, self._period
        pause = min(2 * pause, _LONGEST_PAUSE)
        return pause, pause * random.uniform(0.5, 1)

    def _turn(self, is_last=False):
        """Sends once, unless an agent reads; whether that went well."""
        try:
            if self._recorder.state() == "connected":
                return True
            batch = self._teller.batch(self._node, is_last)
            if batch is None:
                return True
            timeout = _LAST_TIMEOUT / 2 if is_last else _TIMEOUT
            went_well, _ = self._tell("/v1/metrics", metrics_of(batch, self._native), timeout)
            is_done = True
            # Readings that are refused are those of a moment; steps and events have a request of their own.
            if batch["events"] or batch["steps"]:
                taken, is_done = self._tell("/v1/logs", logs_of(batch, self._native), timeout)
                went_well = went_well and taken
            if is_done:
                self._teller.sent()
            return went_well
        except FAILURES as error:
            failed("OTLP", error)
        return False

    def _tell(self, path, body, timeout):
        """Whether it was taken, and whether that is how it stays."""
        try:
            self._post(path, body, timeout)
            return True, True
        except urllib.error.HTTPError as error:
            failed(f"OTLP to {path}", error)
            return False, error.code in _HOPELESS

    def _post(self, path, body, timeout):
        headers = {"Content-Type": "application/json"}
        if self._token_file:
            # Read again each time: it may be rotated.
            with open(self._token_file, encoding="utf-8") as file:
                headers["Authorization"] = f"Bearer {file.read().strip()}"
        data = json.dumps(body, allow_nan=False).encode()
        request = urllib.request.Request(self._endpoint + path, data, headers, method="POST")
        with self._open(request, timeout) as answer:
            said = json.loads(answer.read(_ANSWER_BYTES) or b"{}")
        left_out = (said.get("partialSuccess") or {}).get("errorMessage")
        if left_out:
            debug(f"the server left out: {left_out}")

    def _open(self, request, timeout):
        if self._opener is None:
            handlers = [_NoRedirect()]
            if urllib.parse.urlsplit(self._endpoint).hostname in _LOOPBACK:
                # A proxy is another machine, to which the token would go without TLS.
                handlers.append(urllib.request.ProxyHandler({}))
            if self._endpoint.startswith("https"):
                import ssl

                context = ssl.create_default_context(cafile=self._ca_file or None)
                handlers.append(urllib.request.HTTPSHandler(context=context))
            self._opener = urllib.request.build_opener(*handlers)
        return self._opener.open(request, timeout=timeout)


def _attributes(pairs):
    return [{"key": key, "value": {"stringValue": value}} for key, value in pairs.items()]


def _scope():
    from gpufleet import __version__

    return {"name": "gpufleet-hooks", "version": __version__}


def metrics_of(batch, native):
    """A batch's readings as a request."""
    metrics = {}
    for name, unit, counts, part, value, missing in batch["samples"]:
        point = {"timeUnixNano": str(batch["at"])}
        if counts:
            point["startTimeUnixNano"] = str(batch["since"])
        pairs = dict([part]) if part else {}
        if value is None:
            point["flags"] = 1
            pairs[native.MISSING_REASON] = missing
        else:
            point["asDouble"] = value
        if pairs:
            point["attributes"] = _attributes(pairs)
        kind = "sum" if counts else "gauge"
        settings_of_kind = {"aggregationTemporality": 2, "isMonotonic": True} if counts else {}
        metric = metrics.setdefault(
            name, {"name": name, "unit": unit, kind: {"dataPoints": [], **settings_of_kind}}
        )
        metric[kind]["dataPoints"].append(point)
    scope_metrics = [{"scope": _scope(), "metrics": list(metrics.values())}]
    resource = {"attributes": _attributes(batch["resource"])}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": scope_metrics}]}


def logs_of(batch, native):
    """A batch's events and steps as a request."""
    about = {
        native.RESOURCE_KIND: batch["resource"][native.RESOURCE_KIND],
        native.RESOURCE_ID: batch["resource"]["service.instance.id"],
    }
    records = []
    for event in batch["events"]:
        number, text = event["severity"]
        records.append({
            **_at(event["at"], event["name"]),
            "severityNumber": number,
            "severityText": text,
            "body": {"stringValue": event["message"]},
            "attributes": _attributes({**event["attributes"], **about}),
        })  # fmt: skip
    for ended_at, packed in batch["steps"]:
        records.append({
            **_at(ended_at, native.STEPS_EVENT),
            "severityNumber": 9,
            "body": {"bytesValue": base64.b64encode(packed).decode()},
            "attributes": _attributes(about),
        })  # fmt: skip
    scope_logs = [{"scope": _scope(), "logRecords": records}]
    resource = {"attributes": _attributes(batch["resource"])}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": scope_logs}]}


def _at(moment, name):
    return {"timeUnixNano": str(moment), "observedTimeUnixNano": str(moment), "eventName": name}
