"""``manage.py estimates``: reads files as people have them, prints tables, writes what the acceptance reads."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from scheduling.estimation.embedding import Embedder
from scheduling.estimation.evaluation import ceiling, data, endtoend, run

TASKS = {
    "list the parts of": 20,
    "write a python function about": 180,
    "summarise the report on": 60,
    "tell a long story about": 400,
}
METHODS = [
    "words", "tokens", "words + EMA", "tokens + EMA", "application history", "semantic history 1k",
    "semantic history 10k", "semantic history 10k, cosine >= 0.8", "product, all tenants in one history",
    "product without regression", "product (regression, similar, application, category)",
]  # fmt: skip
METRICS = {"mae", "rmse", "mdape", "pinball", "spearman", "coverage90"}
LATENCIES = {"tokenise_p50", "embed_p50", "search_p50", "total_p50", "total_p99"}


def rows(count: int, seed: int = 3, repeats: int = 1) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    made: list[dict[str, Any]] = []
    for number in range(count):
        task, length = rng.choice(list(TASKS.items()))
        prompt = f"{task} harbour number {number} and the {rng.choice(['old', 'new', 'red'])} crane"
        for _ in range(repeats):
            tokens = max(1, round(length * rng.lognormvariate(0, 0.2)))
            made.append({"prompt": prompt, "response": "word " * tokens, "response_tokens_qwen": tokens})
    return made


def evaluate(*files: Path, folder: Path) -> dict[str, Any]:
    target = folder / "figures.json"
    call_command("estimates", "evaluate", "--data", *map(str, files), "--json", str(target), stdout=io.StringIO())
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def write_lines(path: Path, made: list[dict[str, Any]]) -> Path:
    text = "\n".join(json.dumps(row) for row in made)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


def test_every_method_is_scored_and_latency_is_measured(tmp_path: Path) -> None:
    report = evaluate(write_lines(tmp_path / "prompts.jsonl.gz", rows(400)), folder=tmp_path)
    assert [m["name"] for m in report["methods"]] == METHODS
    for method in report["methods"]:
        assert method.keys() >= METRICS
        assert method["rows"] == report["data"]["test"]
    assert report["latency_ms"].keys() >= LATENCIES
    assert report["latency_ms"]["window"] == 10_000
    by_name = {m["name"]: m for m in report["methods"]}
    assert by_name["semantic history 10k"]["mae"] < by_name["application history"]["mae"] / 2
    assert by_name["tokens + EMA"]["mae"] < by_name["tokens"]["mae"]
    assert by_name[METHODS[-1]]["spearman"] > 0.8
    [application] = by_name[METHODS[-1]]["by_application"].values()
    assert application["rows"] == report["data"]["test"]
    assert 0.8 <= by_name["semantic history 10k"]["coverage90"] <= 1.0


def test_prompts_that_occur_more_than_once_bring_in_the_oracle(tmp_path: Path) -> None:
    report = evaluate(write_lines(tmp_path / "again.jsonl", rows(150, repeats=3)), folder=tmp_path)
    last = report["methods"][-1]
    assert last["name"] == "oracle of repeated samples"
    assert last["repeated"]["mae"] < 60


def test_csv_and_json_and_folders_are_read_and_times_split_by_time(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    made = rows(240)
    with (folder / "a.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["timestamp", "Question", "output_tokens"])
        for number, row in enumerate(made[:120]):
            writer.writerow([1000 + number, row["prompt"], row["response_tokens_qwen"]])
    (folder / "b.json").write_text(
        json.dumps([{"created": 500 + n, "instruction": r["prompt"], "output": r["response"]}
                    for n, r in enumerate(made[120:])])
    )  # fmt: skip
    report = evaluate(folder, folder=tmp_path)
    assert report["data"]["files"] == ["a.csv", "b.json"]
    assert (report["data"]["split"], report["data"]["rows"]) == ("time", 240)
    assert report["drift"]["rows"] == 120, "only examples with their answers can be measured in words"


def test_all_answers_to_one_prompt_are_on_one_side_of_the_split(tmp_path: Path) -> None:
    from scheduling.estimation.evaluation import data

    examples = data.read(write_lines(tmp_path / "again.jsonl", rows(200, repeats=3)))
    train, test, how = data.split(examples)
    assert how == "hash of the prompt"
    assert not {e.prompt for e in train} & {e.prompt for e in test}
    assert 0.6 < len(train) / len(examples) < 0.8


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", '{"a": 1}\n', "no row has a prompt"),
        ("x.jsonl", "{broken\n", "line 1: not JSON"),
        ("x.jsonl.gz", "no gzip", "cannot be read"),
        ("x.jsonl", "[1, 2]\n", "line 1: expected an object"),
        ("x.json", "5", "entry 1: expected an object"),
        ("x.json", '["a", "b"]', "entry 1: expected an object"),
        ("x.json", '{"data": {"a": 1}}', "no row has a prompt"),
        ("x.jsonl", "[" * 100_000, "line 1: not JSON"),
        ("x.jsonl", '{"prompt": "hello", "response": "hi there"}\n', "too few"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(
    name: str, content: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(CommandError, match=words):
        evaluate(path, folder=tmp_path)


def test_a_damaged_gz_file_is_said(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl.gz", rows(200))
    damaged = bytearray(path.read_bytes())
    damaged[40] ^= 0xFF
    damaged[60] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(CommandError, match=r"x\.jsonl\.gz cannot be read"):
        evaluate(path, folder=tmp_path)


def test_a_prompt_may_hold_any_of_unicodes_line_ends(tmp_path: Path) -> None:
    from scheduling.estimation.evaluation import data

    odd = "one \u2028 two \u2029 three \x85 four"
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"prompt": odd, "response": "yes"}, ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert [e.prompt for e in data.read(path)] == [odd]


@pytest.mark.parametrize("length", ["NaN", "1e999", "1e30", '"many"'])
def test_a_length_that_is_no_number_of_tokens_is_none(length: str, tmp_path: Path) -> None:
    from scheduling.estimation.evaluation import data

    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"prompt": "a", "output_tokens": {length}}}\n{{"prompt": "b", "output_tokens": 7}}\n')
    assert [(e.prompt, e.output_tokens) for e in data.read(path)] == [("b", 7)]


def test_a_clock_that_is_no_number_splits_nothing_by_time(tmp_path: Path) -> None:
    from scheduling.estimation.evaluation import data

    made = [{"prompt": f"p {i}", "response": "x", "timestamp": "nan" if i else 1} for i in range(50)]
    _, _, how = data.split(data.read(write_lines(tmp_path / "x.jsonl", made)))
    assert how == "hash of the prompt"


def test_what_is_no_prompts_in_a_folder_is_left_out_but_not_where_it_was_named(tmp_path: Path) -> None:
    from scheduling.estimation.evaluation import data

    folder = tmp_path / "prompts"
    folder.mkdir()
    write_lines(folder / "a.jsonl", rows(20))
    (folder / "meta.json").write_text('{"name": "prompts"}')
    told: list[str] = []
    assert len(data.read_all([str(folder)], skip=told.append)) == 20
    assert len(told) == 1
    assert "meta.json" in told[0]
    with pytest.raises(data.NoExamples):
        data.read_all([str(folder / "meta.json")])


def test_a_few_prompts_are_measured_too(tmp_path: Path) -> None:
    report = evaluate(write_lines(tmp_path / "x.jsonl", rows(20)), folder=tmp_path)
    assert report["latency_ms"]["measured"] == 20


def test_a_report_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", rows(20))
    with pytest.raises(CommandError, match="is a folder"):
        call_command("estimates", "evaluate", "--data", str(path), "--json", str(tmp_path))


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="there is no file or folder"):
        evaluate(tmp_path / "nowhere.jsonl", folder=tmp_path)


@pytest.mark.parametrize("where", ["front", "inside"])
def test_better_predictions_shorten_the_wait_in_a_simulated_engine(tmp_path: Path, where: str) -> None:
    source = write_lines(tmp_path / "prompts.jsonl", rows(400))
    target, asked = tmp_path / "waits.json", ["--data", str(source), "--where", where]
    asked += ["--policies", "fifo", "gittins", "unified"]
    call_command("estimates", "simulate", *asked, "--json", str(target), stdout=io.StringIO())
    told = json.loads(target.read_text())
    assert told["where"] == where
    assert {r["policy"] for r in told["runs"]} == {"fifo", "gittins", "unified"}
    runs = {(r["policy"], r["predictor"]): r["mean_ttlt_s"] for r in told["runs"]}
    assert {r["to_constant"] for r in told["runs"] if r["predictor"] == "application history"} == {1.0}
    for policy in ("gittins", "unified"):
        assert runs[policy, "oracle lengths"] <= runs[policy, "product"] < runs["fifo", "no prediction"]


def test_a_ceiling_knows_more_than_the_product_and_less_than_the_lengths(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "prompts.jsonl", rows(300))
    target, asked = tmp_path / "waits.json", ["--data", str(source), "--policies", "mean_cost", "--ceiling"]
    call_command("estimates", "simulate", *asked, "--json", str(target), stdout=io.StringIO())
    runs = {r["predictor"]: r["mean_ttlt_s"] for r in json.loads(target.read_text())["runs"]}
    assert runs["oracle lengths"] <= runs[ceiling.NAME] < runs["application history"]
    assert endtoend.OTHERS not in runs, "no prompt has two answers"


def test_a_ceiling_never_learns_from_the_prompt_that_it_speaks_of(tmp_path: Path) -> None:
    """Nine times as long answers in one fifth: what is said of that fifth stays, of the others not."""
    cases = run.cases_of(data.read(write_lines(tmp_path / "prompts.jsonl", rows(200))), Embedder())
    own = [ceiling.fold_of(case.example.prompt) == 2 for case in cases]
    changed = [
        replace(case, example=replace(case.example, output_tokens=9 * case.example.output_tokens)) if mine else case
        for case, mine in zip(cases, own, strict=True)
    ]
    for before, after in zip(ceiling.guesses(cases), ceiling.guesses(changed), strict=True):
        assert all(a == b for a, b, mine in zip(before, after, own, strict=True) if mine)
        assert not any(a == b for a, b, mine in zip(before, after, own, strict=True) if not mine)


def test_labels_that_are_common_can_be_applications_of_their_own(tmp_path: Path) -> None:
    made = rows(200)
    for number, row in enumerate(made):
        row["label"] = "often" if number % 4 else f"rare {number}"
    source = write_lines(tmp_path / "labels.jsonl", made)
    found = {(example.label[:4], example.application) for example in data.by_label(data.read(source))}
    assert found == {("ofte", "often"), ("rare", "labels.jsonl")}
