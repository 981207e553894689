"""A `colossal serve` that a script starts, asks and stops."""

import http.client
import json
import re
import signal
import subprocess
import threading
import time

import interop


class Server:
    """Runs `colossal serve --port 0` with these words until the end of a `with` block, which demands status 0 after
    SIGTERM."""

    def __init__(self, *words):
        self.process = subprocess.Popen([interop.binary, "serve", *map(str, words), "--port", "0"],
                                        cwd=interop.temp_dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.lines, self.ready = [], threading.Event()
        self.url = None
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"ready at (http://\S+:\d+)", line)
            if found:
                self.url = found[1]
                self.ready.set()
        self.ready.set()

    def log(self):
        return "".join(self.lines)

    def __enter__(self):
        self.ready.wait(120)
        if self.url is None:
            raise AssertionError(f"the server is not ready: status {self._end(5)}\n{self.log()}")
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.process.send_signal(signal.SIGTERM)
            status = self._end(60)
            assert status == 0, f"status {status} after SIGTERM\n{self.log()}"
        else:
            self._end(0)
            print(self.log()[-4000:])

    def _end(self, seconds):
        """Returns the status of the server, or kills it if it still runs after that time."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"none after {seconds} s"
            self.process.kill()
        self.reader.join(10)
        return status

    def ask(self, method, path, body=None, **headers):
        """Sends one request without the openai package: headers are named as Python names (X_Request_Id). Returns
        status, headers and the body, of JSON as an object."""
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=120)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        return answer.status, answer.headers, json.loads(text) if is_json else text.decode()

    def metrics(self, **headers):
        """Returns {name with labels: value} of /metrics."""
        status, kind, text = self.ask("GET", "/metrics", **headers)
        assert status == 200 and kind["Content-Type"].startswith("text/plain"), (status, kind)
        return {name: float(value)
                for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))}

    def wait_for_metrics(self, condition, **headers):
        """Waits until the metrics meet the condition; fails the test after 30 s."""
        for _ in range(300):
            found = self.metrics(**headers)
            if condition(found):
                return found
            time.sleep(0.1)
        raise AssertionError(found)
