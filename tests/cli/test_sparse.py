"""`varifocal sparse`: its commands' texts, JSON, tables, and what they say of bad input."""

import json
from pathlib import Path

import pytest
import torch
from checkpoints import built
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from varifocal.cli import app
from varifocal.sparse.kernels import BlockKernel, TokenKernel

TEXT = "The quick brown fox jumps over the lazy dog. " * 12
REACH = ("--budget", "16", "--first", "4", "--recent", "8", "--block-size", "4")
COMMON = ("--dtype", "float32", *REACH)


def run(command: str, *words: object):
    return CliRunner().invoke(app, ["sparse", command, *map(str, words)])


@pytest.fixture(scope="module")
def llama() -> Path:
    return built("text-llama")


def generated(llama: Path, *words: object) -> dict:
    given = ("--target", llama, "--prompt", TEXT, "--max-new-tokens", 4, "--json", "-")
    ran = run("generate", *given, *COMMON, *words)
    assert ran.exit_code == 0, ran.stderr
    return json.loads(ran.stdout)


# ── verify ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("queues", ["--one-thread", "--two-threads"])
def test_every_case_is_identical(queues):
    ran = run("verify", "--limit", "14", "--json", "-", queues)
    assert ran.exit_code == 0
    assert json.loads(ran.stdout) == {"requests": 14, "identical": 14}


def test_a_difference_is_counted_named_and_ends_in_1(monkeypatch):
    for kernel in (BlockKernel, TokenKernel):
        honest = kernel.combine

        def wrong(self, cache, layer, queries, helpings, chosen, honest=honest):
            early, _ = helpings
            if early.is_computed.any():  # with speculation: leave a chosen unit out
                chosen = chosen.clone()
                chosen[0, 0, chosen[0, 0].nonzero()[0]] = chosen.sum() == 1
            return honest(self, cache, layer, queries, helpings, chosen)

        monkeypatch.setattr(kernel, "combine", wrong)
    ran = run("verify", "--limit", "21", "--json", "-")
    assert ran.exit_code == 1
    counts = json.loads(ran.stdout)
    assert counts["requests"] == 21 and counts["identical"] < 21
    assert "differs: " in ran.stderr and "block_size=" in ran.stderr


@pytest.mark.parametrize("limit", ["0", "-3"])
def test_no_cases_are_no_verdict(limit):
    assert run("verify", "--limit", limit).exit_code == 2


# ── generate ─────────────────────────────────────────────────────────────────────────────────


def test_the_text_does_not_depend_on_guesses_or_threads(llama, tmp_path):
    (tmp_path / "prompt.txt").write_text(TEXT)
    measured = generated(llama)
    guessed = generated(llama, "--guesses", 1, "--predictor", "last", "--one-thread")
    assert measured["token_ids"] == guessed["token_ids"] and len(guessed["token_ids"]) == 4
    assert guessed["usage"]["completion_tokens"] == 4 and guessed["finish_reason"] == "length"
    assert guessed["hit_rate"] == guessed["hit_rate_last"] > 0
    assert guessed["repaired_blocks"] == sum(x["repaired_blocks"] for x in guessed["layers"])
    assert (guessed["most_tokens"], guessed["is_dense"]) == (32, False)
    assert guessed["timeline"]["t_speculate"] > 0 == guessed["timeline"]["overlap"]
    assert set(guessed["seconds"]) == {"prefill", "calibrate", "decode", "total"}


def test_a_prompt_from_a_file_is_the_same_prompt_and_shown_as_it_goes_on(llama, tmp_path):
    (tmp_path / "prompt.txt").write_text(TEXT)
    given = ("--target", llama, "--max-new-tokens", 2, *COMMON, "--guesses", 0, "--one-thread")
    shown = [
        run("generate", *given, *prompt)
        for prompt in (("--prompt", TEXT), ("--prompt-file", tmp_path / "prompt.txt"))
    ]
    assert shown[0].stdout == shown[1].stdout and "quest on" in shown[0].stderr
    raw = run("generate", *given, "--prompt", TEXT, "--raw", "--json", "-")
    chat = run("generate", *given, "--prompt", TEXT, "--json", "-")
    tokens = [json.loads(r.stdout)["usage"]["prompt_tokens"] for r in (raw, chat)]
    assert tokens[0] < tokens[1]  # by the chat template


def test_a_budget_that_holds_the_text_is_dense_attention_and_says_so(llama):
    ran = run(
        *("generate", "--target", llama, "--prompt", TEXT, "--max-new-tokens", 2),
        *("--dtype", "float32", "--block-size", 4, "--guesses", 1, "--one-thread"),
    )
    assert ran.exit_code == 0 and "attention is dense" in ran.stderr


def test_a_prompt_shorter_than_a_block_is_read(llama):
    short = ("--raw", "--prompt", "a", "--block-size", 64, "--budget", 64)
    assert generated(llama, *short)["is_dense"]


@pytest.mark.parametrize(
    "words,wrong",
    [
        ((), "give either --prompt TEXT or --prompt-file FILE"),
        (("--prompt", "a", "--prompt-file", "b"), "give either --prompt"),
        (("--prompt", " "), "--prompt is empty"),
        (("--prompt-file", "/none"), "cannot be read: No such file"),
        (("--prompt", "a", "--budget", "8"), "does not hold one block of 16"),
        (("--prompt", "a", "--guesses", "many"), "--guesses wants auto or a number"),
        (("--prompt", "a", "--guesses", "-1"), "cannot be negative"),
        (("--prompt", "a", "--guesses", "nan"), "must be a number such as 1.5, got nan"),
        (("--prompt", "a", "--block-size", "0"), "at least 1 token, got block_size=0"),
        (("--prompt", "a", "--max-new-tokens", "0"), "at least 1, got 0"),
        (("--prompt", "a", "--selector", "quast"), "no selector 'quast'"),
        (("--prompt", "a", "--predictor", "luck"), "no predictor 'luck'"),
        (("--prompt", "a", "--dense-layers", "3"), "leave none to be sparse"),
        (("--prompt", "a", "--max-new-tokens", "5000"), "holds 4096"),
    ],
)
def test_bad_input_ends_in_2_and_one_message(words, wrong, llama):
    ran = run("generate", "--target", llama, *words)
    assert ran.exit_code == 2
    assert wrong in ran.stderr and ran.stderr.startswith("Error: ")


def test_sliding_windows_and_weights_that_are_no_numbers_are_refused(llama, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(llama)
    for name in ("sliding", "spoilt"):
        model.save_pretrained(tmp_path / name)
        for file in (*llama.glob("*token*"), *llama.glob("*.jinja")):
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "sliding" / "config.json").read_text())
    config |= {"model_type": "mistral", "sliding_window": 16, "architectures": None}
    (tmp_path / "sliding" / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight.fill_(torch.nan)
    model.save_pretrained(tmp_path / "spoilt")
    for name, wrong in (("sliding", "sliding"), ("spoilt", "keys hold NaN")):
        ran = run("generate", "--target", tmp_path / name, "--prompt", TEXT, *COMMON)
        assert ran.exit_code == 2 and wrong in ran.stderr, ran.stderr


# ── bench ────────────────────────────────────────────────────────────────────────────────────


def test_bench_writes_json_and_markdown(llama, tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    ran = run(
        *("bench", "--target", llama, "--text", tmp_path / "fox.txt", "--contexts", 60),
        *("--selectors", "quest", "--predictors", "last", "--tokens", 2, "--warm-up", 0, *COMMON),
        *("--json", tmp_path / "bench.json", "--report", tmp_path / "bench.md"),
    )
    assert ran.exit_code == 0, ran.stderr
    made = json.loads((tmp_path / "bench.json").read_text())
    assert [row["predictor"] for row in made["rows"]] == ["last"]
    assert made["machine"]["threads"] == 1 and made["queues"] == "TwoThreads"
    assert all(row["texts"] == ["fox.txt"] and not row["different"] for row in made["rows"])
    report = (tmp_path / "bench.md").read_text()
    table = report[report.index("| selector") :]
    assert table.strip() == ran.stdout.strip()
    assert len({line.count("|") for line in table.strip().splitlines()}) == 1


def test_the_tiny_model_reads_texts_with_answers_and_is_marked(monkeypatch, tmp_path):
    from varifocal.demo.long_context import LongPlan, new_model, new_tokenizer

    tokenizer = new_tokenizer()
    plan = LongPlan(hidden=32, inner=48, layers=2, heads=2, kv_heads=1)
    new_model(plan, tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr("varifocal.sparse.decoding._TINY_FOLDER", tmp_path)
    ran = run(
        *("bench", "--contexts", 100, "--tasks", "copy,chain", "--json", "-"),
        *("--selectors", "quest", "--predictors", "last", "--tokens", 3, *COMMON, "--one-thread"),
    )
    assert ran.exit_code == 0, ran.stderr
    (row,) = json.loads(ran.stdout)["rows"]
    assert row["texts"] == ["copy", "chain"] and 0 <= row["accuracy"] <= 1
    assert 0 <= row["accuracy_dense"] <= 1 and row["contention"] == 2  # one queue takes turns


@pytest.mark.parametrize(
    "words,wrong",
    [
        (("--contexts", "8000"), "holds 4096 tokens, but a context of 8000"),
        (("--contexts", "long"), "--contexts wants numbers"),
        (("--tasks", "copy"), "which are for the tiny model"),
        (("--tasks", "sing"), "no task 'sing'"),
        (("--tasks", "copy", "--text", "b"), "either --text or --tasks"),
        (("--samples", "0"), "at least 1, got 0"),
        (("--report", "/none/b.md"), "there is no folder /none"),
        (("--report", "/"), "--report wants a file, but / is a folder"),
        (("--selectors", ","), "--selectors names none"),
        (("--guesses", "inf"), "must be a number such as 1.5, got inf"),
        (("--guesses", "-1"), "cannot be negative"),
    ],
)
def test_a_bench_that_cannot_be_run_says_why(words, wrong, llama):
    ran = run("bench", "--target", llama, *words)
    assert ran.exit_code == 2 and wrong in ran.stderr, ran.stderr


# ── simulate ─────────────────────────────────────────────────────────────────────────────────


def test_simulate_shows_both_denominators_and_where_nothing_pays(tmp_path):
    ran = run("simulate", "--hit-rates", "0.9", "--contention", "1,2", "--json", "-")
    assert ran.exit_code == 0
    made = json.loads(ran.stdout)
    assert "utilization.csv" in made["source"] and len(made["rows"]) == 6
    for row in made["rows"]:
        saved = row["saved"]
        assert saved["window"] > saved["token"] > 0 or row["guessed"] is None
        assert (row["guessed"] is None) == (row["contention"] == 2)
    (tmp_path / "mine.csv").write_text(
        "method,context,select_us,attend_us,layer_us\nmine,8192,50,50,300\n"
    )
    own = run("simulate", "--profile", tmp_path / "mine.csv", "--batch", 2, "--layers", 12)
    assert own.exit_code == 0 and "mine" in own.stdout
    for words, wrong in {
        ("--profile", "fast"): "quest and infllm",
        ("--profile", ""): "wants quest, infllm or FILE.csv",
        ("--hit-rates", "high"): "wants numbers",
        ("--hit-rates", ","): "names none",
        ("--hit-rates", "1.5"): "from 0 to 1, got 1.5",
        ("--contention", "0.5"): "at least 1",
        ("--contention", "nan"): "at least 1",
        ("--contention", "inf"): "at least 1",
        ("--batch", "0"): "at least 1",
    }.items():
        ran = run("simulate", *words)
        assert ran.exit_code == 2 and wrong in ran.stderr
    for cells, wrong in {
        "mine,8192,nan,50,300": "line 2",
        "mine,8192,50,50": "nothing under layer_us",
        "mine,8192,50,50,300,7": "more cells than",
    }.items():
        (tmp_path / "bad.CSV").write_text(f"method,context,select_us,attend_us,layer_us\n{cells}\n")
        ran = run("simulate", "--profile", tmp_path / "bad.CSV")
        assert ran.exit_code == 2 and wrong in ran.stderr, ran.stderr
