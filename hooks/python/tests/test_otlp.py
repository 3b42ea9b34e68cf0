"""The second way: what a server is sent, and what happens where there is none."""

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

from gpufleet import _otlp
from gpufleet._run import Run
from support import SCRIPT_SECONDS


class Server:
    """Takes requests and answers as it is told."""

    def __init__(self, status=200, headers=(), metrics_status=None):
        self.status, self.headers, self.requests = status, headers, []
        self.metrics_status = metrics_status
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, dict(self.headers), json.loads(body)))
                is_metrics = self.path.endswith("/metrics")
                self.send_response(outer.metrics_status if is_metrics and outer.metrics_status else outer.status)
                for name, value in outer.headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"{}")

            def do_GET(self):
                outer.requests.append((self.path, dict(self.headers), None))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_given):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_raised):
        self._server.shutdown()
        self._server.server_close()

    def bodies(self, path):
        return [body for asked, _, body in self.requests if asked == path]


def run_of_test():
    run = Run("/nowhere/hooks.sock")
    run.identify(rank=3, world=8, job_name="llama", job_namespace="team", job_uid="u", attempt=1)
    return run


def attributes(of):
    return {it["key"]: it["value"]["stringValue"] for it in of["attributes"]}


def records(body):
    return body["resourceLogs"][0]["scopeLogs"][0]["logRecords"]


class Sending(unittest.TestCase):
    def test_a_rank_is_told_in_the_words_of_an_agent(self):
        run = run_of_test()
        run.tags(experiment="a")
        run.fingerprint(precision="bf16")
        run.probe(every=1)
        run.step(tokens=10, loss=float("nan"))
        with Server() as server:
            self.assertTrue(_otlp.Sender(run._recorder, server.address)._turn(is_last=True))
        (metrics,), (logs,) = server.bodies("/v1/metrics"), server.bodies("/v1/logs")
        resource = attributes(metrics["resourceMetrics"][0]["resource"])
        self.assertEqual(resource["service.instance.id"], "team/llama/u/1/3")
        self.assertEqual(resource["gpufleet.resource.kind"], "rank")
        self.assertEqual((resource["gpufleet.rank.world"], resource["gpufleet.tag.experiment"]), ("8", "a"))
        told = {it["name"]: it for it in metrics["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]}
        steps = told["gpufleet.training.steps"]["sum"]
        self.assertEqual((steps["dataPoints"][0]["asDouble"], steps["aggregationTemporality"]), (1.0, 2))
        loss = told["gpufleet.training.loss"]["gauge"]["dataPoints"][0]
        self.assertEqual((loss["flags"], "asDouble" in loss), (1, False), "no number is no value")
        by_name = {it["eventName"]: it for it in records(logs)}
        self.assertIn("fingerprint", attributes(by_name["gpufleet.run_started"]))
        self.assertEqual(attributes(by_name["gpufleet.probed"])["verdict"], "could_not_measure")
        self.assertIn("bytesValue", by_name["gpufleet.steps"]["body"])
        self.assertEqual(attributes(by_name["gpufleet.steps"])["gpufleet.resource.id"], "team/llama/u/1/3")

    def test_steps_and_events_wait_while_nobody_answers_and_go_once(self):
        run = run_of_test()
        run.step()
        with Server(status=503) as server:
            sender = _otlp.Sender(run._recorder, server.address)
            self.assertFalse(sender._turn(is_last=True))
            run.step()
            server.status = 200
            self.assertTrue(sender._turn(is_last=True))
            refused, taken = server.bodies("/v1/logs")
            steps = [sum(it["eventName"] == "gpufleet.steps" for it in records(body)) for body in (refused, taken)]
            self.assertEqual(steps, [1, 1])
            self.assertGreater(len(str(taken)), len(str(refused)), "with the step that came meanwhile")
            self.assertTrue(sender._turn(is_last=True))
            self.assertEqual(len(server.bodies("/v1/logs")), 2, "nothing new")

    def test_what_a_server_will_never_take_is_given_up(self):
        run = run_of_test()
        run.step()
        with Server(status=400) as server:
            sender = _otlp.Sender(run._recorder, server.address)
            self.assertFalse(sender._turn(is_last=True))
            self.assertEqual(len(server.bodies("/v1/logs")), 1)
            server.status = 200
            self.assertTrue(sender._turn(is_last=True))
            self.assertEqual(len(server.bodies("/v1/logs")), 1, "and not sent again")

    def test_readings_that_are_refused_cost_no_step_and_no_event(self):
        for refusal in (400, 404, 413, 503):
            run = run_of_test()
            run.step()
            with Server(metrics_status=refusal) as server:
                sender = _otlp.Sender(run._recorder, server.address)
                self.assertFalse(sender._turn(is_last=True))
                (logs,) = server.bodies("/v1/logs")
                self.assertTrue(any(it["eventName"] == "gpufleet.steps" for it in records(logs)), refusal)
                server.metrics_status = None
                self.assertTrue(sender._turn(is_last=True))
                self.assertEqual(len(server.bodies("/v1/logs")), 1, "they have arrived")

    def test_a_route_that_is_missing_for_a_while_costs_nothing(self):
        run = run_of_test()
        run.step()
        for refusal in (404, 405):
            with Server(status=refusal) as server:
                sender = _otlp.Sender(run._recorder, server.address)
                self.assertFalse(sender._turn(is_last=True))
                server.status = 200
                self.assertTrue(sender._turn(is_last=True))
                told = records(server.bodies("/v1/logs")[-1])
                self.assertTrue(any(it["eventName"] == "gpufleet.steps" for it in told), refusal)

    def test_ranks_that_begin_or_fail_together_do_not_send_together(self):
        senders = [_otlp.Sender(run_of_test()._recorder, "http://127.0.0.1:1") for _ in range(20)]
        firsts = []
        for sender in senders:
            sender._over = mock.Mock()
            sender._over.wait.side_effect = lambda wait: firsts.append(wait) or True
            sender._turn = lambda is_last: None
            sender._run()
        self.assertGreater(len(set(firsts)), 10)
        self.assertTrue(all(0 <= it <= 10 for it in firsts), firsts)
        pauses = [sender._next(40.0, False) for sender in senders]
        self.assertTrue(all(pause == 80.0 and 40.0 <= wait <= 80.0 for pause, wait in pauses), pauses)
        self.assertGreater(len({wait for _, wait in pauses}), 10)
        self.assertEqual(senders[0]._next(80.0, True), (10.0, 10.0))
        self.assertEqual(senders[0]._next(200.0, False)[0], 300.0)

    def test_on_this_machine_no_proxy_gets_the_token(self):
        run = run_of_test()
        with Server() as proxy, Server() as server, mock.patch.dict(os.environ, http_proxy=proxy.address):
            os.environ.pop("no_proxy", None)
            self.assertTrue(_otlp.Sender(run._recorder, server.address)._turn())
            self.assertEqual(len(server.requests), 1)
            self.assertEqual(proxy.requests, [])

    def test_nothing_is_sent_before_the_rank_is_known_and_no_step_is_lost(self):
        run = Run("/nowhere/hooks.sock")
        run._recorder.step()
        with Server() as server:
            sender = _otlp.Sender(run._recorder, server.address)
            self.assertTrue(sender._turn())
            self.assertEqual(server.requests, [])
            run.identify(rank=0, world=1, job_name="late")
            sender._turn(is_last=True)
            self.assertTrue(any(it["eventName"] == "gpufleet.steps" for it in records(server.bodies("/v1/logs")[0])))

    def test_where_an_agent_reads_nothing_is_sent(self):
        class Connected:
            def state(self):
                return "connected"

        run = run_of_test()
        with Server() as server:
            sender = _otlp.Sender(run._recorder, server.address)
            sender._recorder = Connected()
            self.assertTrue(sender._turn())
            self.assertEqual(server.requests, [])

    def test_a_token_is_read_each_time_and_goes_nowhere_else(self):
        run = run_of_test()
        with tempfile.NamedTemporaryFile("w") as file, Server() as other:
            file.write("secret-1\n")
            file.flush()
            with Server() as server:
                sender = _otlp.Sender(run._recorder, server.address, token_file=file.name)
                sender._turn()
                self.assertEqual(server.requests[0][1]["Authorization"], "Bearer secret-1")
            with Server(status=302, headers=[("Location", other.address)]) as server:
                sender = _otlp.Sender(run._recorder, server.address, token_file=file.name)
                self.assertFalse(sender._turn())
            self.assertEqual(other.requests, [])

    def test_settings_that_would_tell_a_secret_are_refused_with_the_way_out(self):
        def check(expected, **environ):
            with self.assertRaises(ValueError) as raised:
                _otlp.settings(environ)
            self.assertIn(expected, str(raised.exception))
            self.assertNotIn("hunter2", str(raised.exception))

        self.assertIsNone(_otlp.settings({}))
        check("https://", GPUFLEET_OTLP_ENDPOINT="gpufleet:4318")
        check("GPUFLEET_OTLP_TOKEN_FILE", GPUFLEET_OTLP_ENDPOINT="https://me:hunter2@gpufleet:4318")
        check("https://", GPUFLEET_OTLP_ENDPOINT="http://gpufleet:4318", GPUFLEET_OTLP_TOKEN_FILE="/token")
        self.assertIsNotNone(_otlp.settings({"GPUFLEET_OTLP_ENDPOINT": "http://gpufleet:4318/"}))


class Scripts(unittest.TestCase):
    def run_script(self, script, **environment):
        environment = {**os.environ, "GPUFLEET_HOOKS_SOCKET": "/nowhere/hooks.sock", "GPUFLEET_DEBUG": "1", **environment}
        return subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=SCRIPT_SECONDS
        )

    def test_the_end_of_a_script_is_sent_with_what_ended_it(self):
        script = "import gpufleet\nrun = gpufleet.init(job_name='a')\nrun.step()\nrun.step()\nraise OSError('gone')"
        with Server() as server:
            ended = self.run_script(script, GPUFLEET_OTLP_ENDPOINT=server.address, RANK="0", WORLD_SIZE="1")
        self.assertEqual(ended.returncode, 1)
        told = {it["eventName"]: attributes(it) for it in records(server.bodies("/v1/logs")[-1])}
        self.assertEqual(told["gpufleet.rank_exception"]["exception"], "OSError")
        self.assertEqual(told["gpufleet.run_ended"]["ended"], "exception")

    def test_a_server_that_is_not_there_changes_nothing(self):
        script = "import gpufleet\nrun = gpufleet.init()\nfor _ in range(9): run.step()\nprint('trained')"
        ended = self.run_script(script, GPUFLEET_OTLP_ENDPOINT="http://127.0.0.1:1")
        self.assertEqual((ended.returncode, ended.stdout), (0, "trained\n"), ended.stderr)
        self.assertNotIn("Traceback", ended.stderr)


if __name__ == "__main__":
    unittest.main()
