"""A benchmark that was cut off goes on as if it had not been, and never with runs of another."""

import json
import os
from dataclasses import replace

import pytest
from ticking import Ticks
from tiny import picture, tiny_target

from varifocal.errors import BadArtifact, BadOption
from varifocal.evaluation import bench, contestants
from varifocal.evaluation.bench import BenchConfig, run_bench
from varifocal.evaluation.contestants import Contestant
from varifocal.evaluation.figures import Timed
from varifocal.evaluation.identity import differences, request_digest
from varifocal.evaluation.journal import _line, open_journal, packed, unpacked
from varifocal.evaluation.suites import Case
from varifocal.request import Message, Request, ask
from varifocal.sampling import Sampling

CONFIG = BenchConfig(drafters="plain,lookup:nodes=4", suite="file", repeats=2, draws=20, warm_up=0)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def cases():
    return [
        Case(id=f"sample {seed}", family=("first", "second")[seed % 2],
             request=ask("What is this?", [picture(seed)], max_new_tokens=7))
        for seed in range(4)
    ]  # fmt: skip


@pytest.fixture
def file(tmp_path):
    return tmp_path / "journal.jsonl"


@pytest.fixture
def ran(monkeypatch):
    """Ids of requests by run, in the order in which they were decoded."""
    order = []
    run = Contestant.run
    monkeypatch.setattr(
        Contestant, "run", lambda self, request: order.append(request.id) or run(self, request)
    )
    return order


def go(target, cases, file=None, config=CONFIG, **other):
    return run_bench(config, cases, target, clock=Ticks(), journal=file, **other)


def stop_after(count):
    def progress(done, total):
        if done == count:
            raise KeyboardInterrupt

    return progress


def interrupted(target, cases, file, after=2, config=CONFIG):
    with pytest.raises(KeyboardInterrupt):
        go(target, cases, file, config, progress=stop_after(after))


def figures(result):
    made = json.loads(json.dumps(result.to_dict()))
    del made["sittings"], made["machine"]["load"]
    return made


@pytest.fixture(scope="module")
def whole(target, cases):
    return figures(go(target, cases))


def test_a_resumed_benchmark_has_the_figures_of_one_that_was_never_stopped(
    target, cases, file, whole, ran
):
    interrupted(target, cases, file)
    assert len(ran) == 2 * 4
    result = go(target, cases, file)
    assert ran[8:] == ["sample 2"] * 4 + ["sample 3"] * 4
    assert figures(result) == whole
    assert result.sittings == 2


def test_a_finished_benchmark_is_figured_again_without_decoding(target, cases, file, whole, ran):
    first = go(target, cases, file)
    before, data = len(ran), file.read_bytes()
    again = go(target, cases, file)
    assert len(ran) == before and file.read_bytes() == data
    assert figures(first) == figures(again) == whole


def test_a_request_cut_off_in_the_middle_is_redone_whole(target, cases, file, monkeypatch, whole):
    run, calls = Contestant.run, []

    def cut(self, request):
        calls.append(request.id)
        if len(calls) == 4 + 3:  # the second request lacks its last run
            raise KeyboardInterrupt
        return run(self, request)

    monkeypatch.setattr(Contestant, "run", cut)
    with pytest.raises(KeyboardInterrupt):
        go(target, cases, file)
    calls.clear()
    calls.extend([""] * 100)
    assert figures(go(target, cases, file)) == whole
    assert calls[100:].count("sample 1") == 4
    lines = [json.loads(line)["is"] for line in file.read_text().splitlines()]
    requests = {line["number"]: line for line in lines if line["kind"] == "request"}
    assert [requests[n]["sitting"] for n in range(4)] == [0, 1, 1, 1]
    assert all(len(line["runs"]) == 4 for line in requests.values())


@pytest.mark.parametrize("cut", [1, 2, 40, -1], ids=lambda n: f"{n} bytes")
def test_a_line_cut_in_half_at_the_end_is_dropped_and_done_again(
    target, cases, file, cut, whole, ran
):
    go(target, cases, file)
    data = file.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    file.write_bytes(data[:-cut] if cut > 0 else data[: last + 1])
    ran.clear()
    assert figures(go(target, cases, file)) == whole
    assert ran == ["sample 3"] * 4
    assert file.read_bytes().count(b"\n") == data.count(b"\n") + 1  # a second sitting's line


def test_a_journal_cut_off_in_its_first_line_is_begun_anew(target, cases, file, whole):
    go(target, cases, file)
    file.write_bytes(file.read_bytes()[:50])
    assert figures(go(target, cases, file)) == whole


@pytest.mark.parametrize("line", [1, 2, 3])
def test_any_other_damage_is_an_error_that_names_the_line(target, cases, file, line):
    go(target, cases, file)
    lines = file.read_bytes().splitlines(keepends=True)
    middle = len(lines[line - 1]) // 2
    lines[line - 1] = lines[line - 1][:middle] + b"7" + lines[line - 1][middle:]
    file.write_bytes(b"".join(lines))
    before = file.read_bytes()
    with pytest.raises(BadArtifact, match=rf"damaged in line {line}.*--fresh"):
        go(target, cases, file)
    assert file.read_bytes() == before
    go(target, cases, file, is_fresh=True)
    assert len(file.read_bytes().splitlines()) == 6


def test_lines_in_another_order_are_the_same_benchmark(target, cases, file, whole):
    go(target, cases, file)
    first, sitting, *requests = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([first, sitting, *reversed(requests)]))
    assert figures(go(target, cases, file)) == whole


def test_runs_under_another_requests_number_are_refused(target, cases, file):
    go(target, cases, file)
    lines = file.read_bytes().splitlines(keepends=True)
    content = json.loads(lines[2])["is"]
    for changed in ({"number": 1}, {"sitting": 5}, {"runs": content["runs"][:3]}):
        file.write_bytes(b"".join([*lines[:2], _line(content | changed)]))
        with pytest.raises(BadArtifact, match="line 3: its runs are not those"):
            go(target, cases, file)
    file.write_bytes(b"".join([*lines, lines[2]]))
    with pytest.raises(BadArtifact, match="sample 0 stands there twice"):
        go(target, cases, file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"repeats": 3}, "repeats was 2, is 3"),
        ({"seed": 5}, "seed was 0, is 5"),
        ({"warm_up": 1}, "warm_up was 0, is 1"),
        ({"clock": "wall"}, "clock was cpu, is wall"),
        ({"max_new_tokens": 3}, "cases sample 0.request was"),
        ({"sampling": Sampling(top_k=4)}, "sampling.top_k was 0, is 4"),
        ({"drafters": "plain,lookup:nodes=5"}, "entries had lookup:nodes=4; entries now has look"),
        ({"drafters": "plain"}, "entries had lookup:nodes=4"),
        ({"drafters": "lookup:nodes=4,plain"}, "entries come in another order"),
    ],
    ids=str,
)
def test_another_command_is_refused_with_what_differs(target, cases, file, change, said, ran):
    interrupted(target, cases, file)
    before, ran[:] = file.read_bytes(), []
    with pytest.raises(BadOption, match=said) as refused:
        go(target, cases, file, replace(CONFIG, **change))
    assert "another place" in str(refused.value) and "--fresh" in str(refused.value)
    assert file.read_bytes() == before and not ran


def test_other_requests_are_refused_by_name(target, cases, file):
    interrupted(target, cases, file)
    pixel = cases[1].request.images[0].copy()
    pixel.putpixel((3, 3), (1, 2, 3))
    other = replace(cases[1], request=ask("What is this?", [pixel], max_new_tokens=7))
    for changed, said in (
        ([cases[0], other, *cases[2:]], "cases sample 1.request"),
        ([replace(cases[0], reference="A circle."), *cases[1:]], "cases sample 0.answer"),
        (cases[:3], "cases had sample 3"),
        ([*cases[2:], *cases[:2]], "cases come in another order"),
    ):
        with pytest.raises(BadOption, match=said):
            go(target, changed, file)


def test_another_target_or_precision_or_code_is_refused(target, cases, file, monkeypatch):
    interrupted(target, cases, file)
    with pytest.raises(BadOption, match="fingerprint was"):
        go(tiny_target(seed=1), cases, file)
    monkeypatch.setattr(bench, "code_digest", lambda: "other code")
    with pytest.raises(BadOption, match=r"code was .*, is other code"):
        go(target, cases, file)
    monkeypatch.setattr(bench, "git_commit", lambda: "0ddba11")
    with pytest.raises(BadOption, match="commit was"):
        go(target, cases, file)


def test_another_machine_is_refused_and_another_load_is_not(target, cases, file, monkeypatch):
    interrupted(target, cases, file)
    info = bench.machine_info(target.device) | {"threads": 1}
    monkeypatch.setattr(bench, "machine_info", lambda device: info | {"cpu": "other"})
    with pytest.raises(BadOption, match=r"cpu was .*, is other"):
        go(target, cases, file)
    monkeypatch.setattr(bench, "machine_info", lambda device: info | {"load": 99.0})
    assert go(target, cases, file).sittings == 2


def test_later_sittings_plan_with_the_costs_of_the_first(target, cases, file, monkeypatch):
    from varifocal.plan import CostModel

    asked = []

    def measured(target, drafter):
        asked.append(drafter.name)
        return CostModel(verify=(1.0, 1.1, 1.2), step=0.0, start=0.0, other=len(asked) / 10)

    monkeypatch.setattr(contestants, "measure", measured)
    config = replace(CONFIG, drafters="plain,lookup:max_nodes=2")
    interrupted(target, cases, file, config=config)
    begun = list(asked)
    seen = []
    run = Contestant.run
    monkeypatch.setattr(
        Contestant, "run", lambda self, r: seen.append(self.runner.cost) or run(self, r)
    )
    go(target, cases, file, config)
    assert asked == begun  # nothing was measured anew
    assert {cost.other for cost in seen} == {0.1, 0.2}
    assert {cost.verify for cost in seen} == {(1.0, 1.1, 1.2)}


def test_two_benches_at_once_in_one_place_are_refused(target, cases, file):
    pytest.importorskip("fcntl")
    with open_journal(file, {"cases": []}), pytest.raises(BadOption, match="another bench"):
        go(target, cases, file)


def test_a_full_disk_is_a_named_error_and_the_same_command_goes_on(
    target, cases, file, monkeypatch, whole
):
    sync, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) == 4:
            os.ftruncate(handle, os.fstat(handle).st_size - 9)  # as much as there was room for
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadArtifact, match=r"No space left.*same command again"):
        go(target, cases, file)
    assert figures(go(target, cases, file)) == whole


def test_a_place_that_cannot_be_written_is_named(target, cases, tmp_path):
    with pytest.raises(BadOption, match="cannot be written"):
        go(target, cases, tmp_path / "nowhere" / "journal.jsonl")


def test_a_run_comes_back_as_it_was(target, cases):
    engine = contestants.Engine(target, contestants.load_drafter("lookup", target, nodes=4))
    run = Timed(result=engine.generate(cases[0].request), total=1 / 3, state_bytes=12)
    back = unpacked(json.loads(json.dumps(packed(run))))
    assert back.total == run.total and back.state_bytes == 12
    assert back.result.to_dict() == run.result.to_dict()
    assert [r.tokens for r in back.result.rounds] == [r.tokens for r in run.result.rounds]


def test_a_digest_depends_on_everything_that_a_request_says():
    shown = picture(0)
    turned = shown.rotate(180)
    asked = [
        ask("What?", [shown]),
        ask("What?", [turned]),
        ask("What?", [shown, turned]),
        ask("What?", [turned, shown]),
        ask("What", [shown]),
        ask("What?", [shown], max_new_tokens=5),
        ask("What?", [shown], stop=["a"]),
        ask("What?", [shown], stop=["a", "b"]),
        ask("What?", [shown], sampling=Sampling(seed=1)),
        ask("What?", [shown], logprobs=1),
        Request(messages=(Message("user", ("What?", shown)),)),
        Request(messages=(Message("system", ("What?",)), Message("user", (shown, "What?")))),
        Request(messages=(Message("user", (shown, "Wh", "at?")),)),
    ]
    assert len({request_digest(request) for request in asked}) == len(asked)
    assert request_digest(ask("What?", [picture(0)], id="other")) == request_digest(asked[0])


def test_differences_are_few_and_in_words():
    assert differences({"a": 1, "b": {"c": None}}, {"a": 1, "b": {"c": 2}}) == [
        "b.c was not there, is 2"
    ]
    many = {f"n{i}": 0 for i in range(20)}
    assert differences(many, {})[-1] == "and 14 more"
    rows = {"rows": [{"id": "x", "v": 1}, {"id": "y", "v": 1}]}
    other = {"rows": [{"id": "x", "v": 2}, {"id": "z"}]}
    assert differences(rows, other) == ["rows had y", "rows now has z", "rows x.v was 1, is 2"]
