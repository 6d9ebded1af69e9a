"""The tools of MCP, by the client of the official SDK, over HTTP and standard input and output."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving import PATIENCE, client_of, running_server
from tests.support.toy import PASSAGES

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:mcp")


async def use_tools(server, mode):
    """Call the tools by the SDK's client; return their names and the results of four calls."""
    from mcp import Client

    async with Client(server, mode=mode) as client:
        tools = await client.list_tools()
        calls: list[tuple[str, dict[str, Any]]] = [
            ("search", {"query": "river boat", "hits": 2}),
            ("fetch", {"id": "d10"}),
            ("fetch", {"id": "d99"}),
            ("search", {"query": "moon", "hits": 100_000}),
        ]
        results = [await client.call_tool(name, arguments) for name, arguments in calls]
    return [tool.name for tool in tools.tools], results


def check_tools(server, mode="auto"):
    """Call the tools of a server, and compare what they return; `mode` is the SDK's handshake."""
    names, (found, fetched, absent, too_many) = asyncio.run(use_tools(server, mode))
    assert names == ["search", "fetch"]
    assert found.structured_content["index"] == "bm25"
    first, second = found.structured_content["results"]
    assert (first["id"], first["title"], first["text"]) == ("d5", *PASSAGES["d5"])
    assert second["id"] == "d1"
    assert first["score"] > second["score"] > 0
    title, text = PASSAGES["d10"]
    assert fetched.structured_content == {"id": "d10", "title": title, "text": text}
    assert absent.is_error
    assert "Document not found: d99" in absent.content[0].text
    assert too_many.is_error
    assert "at most 1000" in too_many.content[0].text


def stdio_command(*options):
    """Return the command of a server over standard input and output, and its environment."""
    command = [sys.executable, "-m", "denserk", "serve", "--index", "bm25", "--mcp", *options]
    return command, {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.slow
def test_the_sdk_uses_the_tools_over_http(served):
    with running_server(served, "--index", "bm25", "--index", "dense") as server:
        for mode in ("auto", "legacy"):  # with the protocol of 2026, and with those before
            check_tools(f"{server.address}/mcp", mode)


@pytest.mark.slow
def test_the_sdk_uses_the_tools_over_standard_input(served):
    from mcp.client.stdio import StdioServerParameters

    (program, *arguments), environment = stdio_command()
    check_tools(StdioServerParameters(command=program, args=arguments, env=environment, cwd=served))


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_tools_although_their_input_is_open(served, signum):
    command, environment = stdio_command()
    with subprocess.Popen(
        command,
        cwd=served,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "tools search and fetch" in line:
                break
        process.send_signal(signum)
        assert process.wait(PATIENCE) == 128 + signum


@pytest.mark.slow
def test_the_end_of_the_input_is_the_end_of_the_tools(served):
    command, environment = stdio_command("--quiet")
    process = subprocess.run(
        command, cwd=served, env=environment, stdin=subprocess.DEVNULL, capture_output=True
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, b"", b"")


def test_tools_are_called_without_a_session(client):
    """A plain request of JSON-RPC is answered, as clients without the SDK send it."""
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
    }
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "search", "arguments": {"query": "moon", "index": "bm25+dense"}},
    }
    answer = client.post("/mcp", json=call, headers=headers).json()
    assert answer["result"]["structuredContent"]["results"][0]["id"] == "d4"
    rejected = client.post("/mcp", json=call, headers={**headers, "Origin": "http://evil.example"})
    assert rejected.status_code == 403
    response = client.get("/mcp")
    assert (response.status_code, response.json()) == (405, {"error": "Only POST is supported"})


def test_an_internal_error_is_hidden_from_the_agent(service, monkeypatch, caplog):
    def fail(requests):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(service, "answer", fail)
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "search", "arguments": {"query": "moon"}},
    }
    headers = {"Accept": "application/json, text/event-stream"}
    with client_of(service) as client:
        text = client.post("/mcp", json=call, headers=headers).text
    assert "Internal error" in text
    assert "secret" not in text
    assert any("ZeroDivisionError: secret" in message for message in caplog.messages)


def test_the_transcript_of_the_documentation_is_what_a_server_answers(client):
    page = (ROOT / "docs/howto/serve.md").read_text("utf-8")
    (transcript,) = re.findall(r"```json\n(\[.*?)```", page, re.DOTALL)
    exchanges = json.loads(transcript)
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
    }
    for exchange in exchanges:
        answer = client.post("/mcp", json=exchange["request"], headers=headers).json()
        assert answer == exchange["response"]
