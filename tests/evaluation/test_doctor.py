"""What the doctor says of pairs that are well, and of pairs with one known fault each."""

import json
from dataclasses import replace

import pytest
import torch
from checkpoints import built, families
from examined import case, faults, found
from tiny import picture, tiny_target

from varifocal.cache import KVCache
from varifocal.drafters import load_drafter
from varifocal.drafters._weights import Card, load_trained, save_trained, shipped_weights
from varifocal.drafters.fovea import FoveaDrafter
from varifocal.errors import BadOption
from varifocal.evaluation.doctor import diagnose, examine
from varifocal.evaluation.suites import Case, load_suite
from varifocal.request import ask
from varifocal.targets import load_target


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def demo():
    return load_target("demo")


@pytest.fixture(scope="module")
def demo_cases():
    cases = load_suite("demo", limit=1, families=["document"])
    return [replace(c, request=replace(c.request, max_new_tokens=26)) for c in cases]


# -- pairs that are well -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def healthy(demo, demo_cases):
    return diagnose(demo, "fovea", {}, demo_cases)


def test_the_shipped_pair_is_well(healthy):
    assert not faults(healthy), healthy.conclusion
    verdicts = {f.check: f.verdict for f in healthy.findings}
    for group in ("target", "positions"):
        assert {v for c, v in verdicts.items() if c.startswith(group)} == {"ok"}
    for check in ("acceptance.promises", "acceptance.agreement", "decoding.text", "decoding.tau"):
        assert verdicts[check] == "ok"
    assert verdicts["drafter.vocabulary"] == "not applicable"
    assert healthy.conclusion == "no fault was found"


def test_a_trained_drafter_notices_that_its_features_are_wrong(healthy):
    changes = found(healthy, "acceptance.inputs").numbers["changes"]
    assert changes["features in random order"]["effect"] == "worse"
    assert changes["untrained weights"]["effect"] == "worse"


def test_the_diagnosis_is_json_with_a_verdict_for_each_check(healthy):
    told = json.loads(json.dumps(healthy.to_dict(), allow_nan=False))
    assert told["verdict"] in ("ok", "warning") and told["requests"] == 1
    assert {"check", "verdict", "measured", "way_out", "numbers"} == set(told["checks"][0])
    assert len({c["check"] for c in told["checks"]}) == len(told["checks"]) == 22


def test_a_drafter_without_weights_skips_checks_by_name(target):
    diagnosis = diagnose(target, "lookup", {}, [case(0), case(1)])
    assert not faults(diagnosis), diagnosis.conclusion
    for check in ("drafter.weights", "drafter.tables", "acceptance.inputs"):
        assert found(diagnosis, check).verdict == "not applicable"
    assert found(diagnosis, "drafter.weights").measured == "lookup has no weights"
    assert found(diagnosis, "acceptance.agreement").verdict == "ok"


def test_plain_decoding_is_examined_without_drafts(target):
    diagnosis = diagnose(target, "plain", {}, [case()])
    assert not faults(diagnosis)
    assert found(diagnosis, "decoding.text").measured == "plain drafts nothing"


@pytest.mark.parametrize("name", ["qwen2_vl", "llava_next", "text-llama"])
def test_checkpoints_as_published_are_well(name):
    family = families()[name]
    images = [picture(0, family.sizes[0])] if family.max_pictures else []
    request = ask("what is it? what is it?", images, max_new_tokens=12)
    published = load_target(str(built(name)), dtype=torch.float32)
    diagnosis = diagnose(published, "lookup", {}, [Case(id="a", family="b", request=request)])
    assert diagnosis.verdict == "ok", diagnosis.conclusion
    offset = found(diagnosis, "positions.prompt").numbers["offset"]
    assert (offset < 0) is (name == "qwen2_vl")  # M-RoPE: slots share positions


# -- useless weights -----------------------------------------------------------------------------


def test_shuffled_weights_are_at_the_floor_and_named_as_the_reason(demo, demo_cases):
    drafter = load_trained(shipped_weights("fovea", demo), demo, {})
    dice = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in drafter.network.parameters():
            order = torch.randperm(weight.numel(), generator=dice)
            weight.copy_(weight.reshape(-1)[order].view_as(weight))
    drafter.prepare()
    diagnosis = examine(demo, drafter, demo_cases)
    assert faults(diagnosis) == ["acceptance.agreement", "acceptance.inputs"]
    assert found(diagnosis, "acceptance.agreement").measured.startswith("it is at the floor")
    assert "no better than untrained ones" in diagnosis.conclusion
    assert found(diagnosis, "decoding.text").verdict == "ok"


def test_a_drafter_of_another_target_is_a_fault_and_the_target_is_examined_all_the_same(
    target, tmp_path
):
    drafter = FoveaDrafter(target, FoveaDrafter.Config(inner=32, memory_width=16, bottleneck=16))
    save_trained(drafter, tmp_path, card=Card(seed=0, steps=0))
    diagnosis = diagnose(tiny_target(seed=1), str(tmp_path), {}, [case()])
    assert faults(diagnosis) == ["drafter.load"]
    assert "was trained for 'tiny'" in diagnosis.conclusion
    assert found(diagnosis, "positions.tree").verdict == "ok"
    assert found(diagnosis, "acceptance.agreement").verdict == "not applicable"


def test_weights_under_names_that_the_method_does_not_have_are_a_fault(target, tmp_path):
    drafter = FoveaDrafter(target, FoveaDrafter.Config(inner=32, memory_width=16, bottleneck=16))
    drafter.network.fused = drafter.network.fuse
    del drafter.network.fuse
    save_trained(drafter, tmp_path, card=Card(seed=0, steps=0))
    diagnosis = diagnose(target, str(tmp_path), {}, [case(tokens=4)])
    assert faults(diagnosis) == ["drafter.load"]
    assert "fuse.weight is missing" in diagnosis.conclusion
    assert "fused.weight is not part" in diagnosis.conclusion


def test_damaged_files_of_a_drafter_are_a_fault(target, tmp_path):
    drafter = FoveaDrafter(target, FoveaDrafter.Config(inner=32, memory_width=16, bottleneck=16))
    save_trained(drafter, tmp_path, card=Card(seed=0, steps=0))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    diagnosis = diagnose(target, str(tmp_path), {}, [case(tokens=4)])
    assert faults(diagnosis) == ["drafter.load"]
    assert "copy it again" in diagnosis.conclusion


def test_a_misspelt_drafter_is_bad_usage(target):
    with pytest.raises(BadOption, match="fovae"):
        diagnose(target, "fovae", {}, [case()])


def test_a_score_far_below_the_card_is_a_warning(target):
    drafter = load_drafter("lookup", target)
    for promised, verdict in ((20.0, "warning"), (1.0, "ok")):
        drafter.recipe = {"seed": 0, "steps": 1, "scores": {"tau": promised}}
        finding = found(examine(target, drafter, [case(0, 60)]), "decoding.card")
        assert finding.verdict == verdict
        assert finding.numbers["card"] == promised


# -- faults of the target ------------------------------------------------------------------------


def test_a_template_that_places_no_pictures_is_the_first_fault():
    broken = tiny_target()
    broken.processor.chat_template = (
        "{% for m in messages %}{% for p in m['content'] if p['type'] == 'text' %}"
        "{{ p['text'] }}{% endfor %}{% endfor %}"
    )
    diagnosis = diagnose(broken, "lookup", {}, [case(tokens=4)])
    assert diagnosis.conclusion.startswith("target.template: the chat template made 0 picture")
    assert diagnosis.requests == 0
    assert "cannot be asked" in found(diagnosis, "positions.tree").measured
    assert found(diagnosis, "acceptance.agreement").verdict == "not applicable"


def test_a_template_that_drops_the_question_is_a_fault():
    broken = tiny_target()
    broken.processor.chat_template = (
        "{% for m in messages %}{% for p in m['content'] if p['type'] == 'image' %}"
        "<image>{% endfor %}{% endfor %}"
    )
    diagnosis = diagnose(broken, "plain", {}, [case(tokens=4)])
    assert "lacks the question" in found(diagnosis, "target.template").measured


def test_an_end_token_that_the_template_does_not_use_is_a_warning():
    other = tiny_target()
    other.eos_ids, ended = frozenset({20}), other.eos_ids
    other.banned_ids |= ended
    finding = found(diagnose(other, "plain", {}, [case(tokens=4)]), "target.eos")
    assert finding.verdict == "warning" and "<|end|>" in finding.measured


@pytest.mark.parametrize("ids", [[], [10_000]])
def test_no_end_token_inside_the_vocabulary_is_a_fault(ids):
    other = tiny_target()
    other.eos_ids = frozenset(ids)
    assert "target.eos" in faults(diagnose(other, "plain", {}, [case(tokens=4)]))


def test_features_that_do_not_fill_the_slots_are_a_fault():
    broken = tiny_target()
    see = broken.see

    def cut(prompt):
        seen = see(prompt)
        return replace(seen, features=seen.features[:-1])

    broken.see = cut
    finding = found(diagnose(broken, "plain", {}, [case(tokens=4)]), "target.pictures")
    assert finding.verdict == "fault" and "50x50: " in finding.measured


def test_rejected_drafts_that_leave_a_trace_are_a_fault(target, monkeypatch):
    keep = KVCache.keep
    monkeypatch.setattr(KVCache, "keep", lambda self, path, n: keep(self, range(len(path)), n))
    diagnosis = diagnose(target, "plain", {}, [case(tokens=6)])
    assert faults(diagnosis) == ["positions.keep"]


def test_an_offset_of_positions_that_is_wrong_after_a_picture_is_a_fault():
    broken = tiny_target()
    prefill = broken.prefill

    def off(prompt, want):
        cache, seen = prefill(prompt, want)
        cache.offset += 40
        return cache, seen

    broken.prefill = off
    assert faults(diagnose(broken, "plain", {}, [case(tokens=6)])) == ["positions.prompt"]


def test_what_a_request_leaves_on_the_model_is_a_fault():
    broken = tiny_target()
    prefill = broken.prefill

    def leaving(prompt, want):
        cache, seen = prefill(prompt, want)
        with torch.no_grad():
            broken.model.lm_head.weight.mul_(1.5)
        return cache, seen

    broken.prefill = leaving
    assert "positions.request" in faults(diagnose(broken, "plain", {}, [case(tokens=6)]))
