"""`glassformer explore`: one line with the address, and an end without noise."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from glassformer.cli.main import main


def refusal(capsys, *arguments: str) -> str:
    assert main(["explore", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    return told.err


def test_a_busy_port_is_told_with_the_flag_that_mends_it(capsys) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "--port" in refusal(capsys, "--port", str(taken.getsockname()[1]))
    assert "0 to 65535" in refusal(capsys, "--port", "70000")
    assert "--host" in refusal(capsys, "--host", "no.such.host.invalid", "--port", "0")


def test_an_unknown_model_is_told_with_the_nearest(capsys) -> None:
    assert "did you mean 'zh-en'" in refusal(capsys, "-m", "zhen", "--port", "0")
    assert "did you mean 'teaching'" in refusal(capsys, "-m", "teachin", "--html", "page.html")
    assert not os.path.exists("page.html")


@pytest.mark.slow
def test_the_address_is_all_that_it_prints_and_ctrl_c_ends_it() -> None:
    command = [sys.executable, "-m", "glassformer", "explore", "我爱你", "-m", "teaching", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", env=environment
    )
    killer = threading.Timer(60, program.kill)
    killer.start()
    try:
        assert program.stdout is not None
        address = program.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:") and address.endswith("/#map?text=%E6%88%91%E7%88%B1%E4%BD%A0")
        port = int(address.removeprefix("http://127.0.0.1:").partition("/")[0])
        assert ask(port, "GET", "/api/models")[0]["name"] == "teaching"
        run = ask(port, "POST", "/api/runs", {"model": "teaching", "text": "我爱你"})
        assert run["output"]["text"] == "I love you"
        # Who leaves a training makes room for the next one.
        for _ in range(2):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/api/training")
            response = connection.getresponse()
            assert response.status == 200 and response.readline().startswith(b"data: ")
            response.close()
            connection.close()
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=30)
    finally:
        killer.cancel()
        program.kill()
    assert program.returncode == 0 and out == ""
    assert "Traceback" not in err and err.splitlines()[0] == "Ctrl-C stops it"


def ask(port: int, method: str, path: str, body: dict | None = None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body and json.dumps(body), {"content-type": "application/json"} if body else {})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def test_a_page_is_written_whole(tmp_path, capsys, monkeypatch) -> None:
    from glassformer.explore import export

    static = tmp_path / "static"
    static.mkdir()
    file = tmp_path / "page.html"
    monkeypatch.setattr(export, "STATIC", static)
    assert "npm run build" in refusal(capsys, "--html", str(file))
    assert not file.exists()
    (static / "page.html").write_text("<!doctype html><!--responses-->")
    monkeypatch.setattr(export.Lesson, "events", lambda self, seconds: iter([]))
    assert main(["explore", "-m", "teaching", "--html", str(file)]) == 0
    assert "window.__GLASSFORMER__" in file.read_text(encoding="utf-8")
    assert "MB" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_help_names_its_flags(capsys, argument: str) -> None:
    assert main(["explore", argument]) == 0
    told = capsys.readouterr().out
    assert all(flag in told for flag in ("--port", "--html", "--host", "--from", "--to", "--model"))
