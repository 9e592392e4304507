"""A recorded full run, and gates replayed on it: exactly what they do live."""

from dataclasses import replace

import numpy as np
import pytest
from diffusion.tiny import Kind
from tabled import FIRST_LETTER, Tabled, decided, scripted

from varifocal.diffusion import gates
from varifocal.diffusion.decode import Decoding, generate
from varifocal.diffusion.recording import Recording, load_recordings, save_recordings
from varifocal.diffusion.replay import replay
from varifocal.diffusion.result import DiffusionResult
from varifocal.diffusion.schedule import Plan
from varifocal.errors import BadArtifact, BadOption
from varifocal.sampling import Sampling

PROMPTS = [[40, 41], [90, 91, 92]]
# Settings at which random models sometimes stop, early or late, and sometimes do not.
GATES = [
    "full",
    "eos_stop",
    "prophet:suffix=:early=3:middle=2:late=1.5",
    "sched:high=3:low=1:unchanged=false",
    "sched:shape=exp:high=4:low=1",
    "stable_and_confident:entropy=0.5",
    "cvc:w=2:tau=0.4:context=none",
    "cvc:w=4:tau=0.3:agg=mean:unit=tokens",
    "cvc:w=2:tau=0.4:fill=cut",
    "cvc:w=2:tau=0.4:fill=finish_block",
    "cvc:w=3:tau=0.6:agg=geo:context=prefix_committed",
]
SETTINGS = {
    "plain": (Plan(canvas=11, block=4), "low_confidence", 0.0),
    "cached": (Plan(canvas=14, block=5, caching="dual"), "threshold:tau=0.7", 0.0),
    "drawn": (Plan(canvas=14, block=14, steps=7), "entropy", 0.9),
}


def recorded(denoiser, prompts=PROMPTS, format=FIRST_LETTER, **options) -> list[Recording]:
    decoding = Decoding(denoiser, prompts, format=format, gate="full", recording=True, **options)
    for _ in decoding:
        pass
    return decoding.recordings()


def outcome(result: DiffusionResult) -> tuple:
    """All but times."""
    steps = [(s.step, s.positions, s.tokens, s.block, s.text, s.told) for s in result.steps]
    return (
        *(result.token_ids, result.text, result.finish, result.reason, result.exit_step),
        *(result.nfe, result.num_filled, result.candidate, result.verified_span),
        *(result.confidence, result.num_computed, result.gate, result.seed, steps),
    )


@pytest.mark.parametrize(
    ("kind", "setting"),
    [("llada", "plain"), ("dream", "plain"), ("llada", "cached"), ("dream", "drawn")],
)
def test_a_replay_is_the_live_run(kind: Kind, setting: str):
    plan, sampler, temperature = SETTINGS[setting]
    denoiser = decided(kind)
    options = {
        "plan": plan,
        "sampler": sampler,
        "sampling": Sampling(temperature=temperature, seed=4),
    }
    recordings = recorded(denoiser, **options)
    stopped = set()
    for gate in GATES if setting == "plain" else GATES[3::3]:
        live = generate(denoiser, PROMPTS, format=FIRST_LETTER, gate=gate, **options)
        for number, (recording, wanted) in enumerate(zip(recordings, live, strict=True)):
            made = replay(recording, gate, denoiser.tokenizer, format=FIRST_LETTER)
            assert outcome(made) == outcome(wanted), (gate, number)
            stopped.add(made.exit_step)
    assert len(stopped) > 2  # or there would be little to compare


def test_a_replay_is_the_live_run_with_a_forced_suffix():
    denoiser = decided("llada")
    gate = gates.find("prophet:suffix=is:place=0.5:early=3:middle=2:late=1.5")
    plan = Plan(canvas=14, block=5)
    pinned = gate.plan(plan, denoiser.tokenizer)
    live = generate(denoiser, PROMPTS, format=FIRST_LETTER, gate=gate, plan=plan)
    for recording, wanted in zip(recorded(denoiser, plan=pinned), live, strict=True):
        made = replay(recording, gate, denoiser.tokenizer, format=FIRST_LETTER)
        assert outcome(made) == outcome(wanted)
    (unpinned,) = recorded(denoiser, [[5, 6]], plan=plan)
    with pytest.raises(BadOption, match="prophet cannot be replayed on this recording: it pins"):
        replay(unpinned, gate, denoiser.tokenizer)


def test_recordings_come_back_from_their_file_as_they_were(tmp_path):
    plan = Plan(canvas=10, block=4, pins=((9, 5),))
    recordings = recorded(
        Tabled(scripted(("yes" + "$" * 7, 0.9))), [[5], [6, 7]], "yes_no", plan=plan
    )
    save_recordings(tmp_path / "runs.npz", recordings)
    back = load_recordings(tmp_path / "runs.npz")
    assert [r.facts for r in back] == [r.facts for r in recordings]
    assert back[1].facts.plan == plan and back[1].facts.prompt == (6, 7)
    for one, other in zip(recordings, back, strict=True):
        for name in Recording.__dataclass_fields__:
            a, b = getattr(one, name), getattr(other, name)
            assert name == "facts" or (np.array_equal(a, b) and a.dtype == b.dtype)
    assert [p.name for p in tmp_path.iterdir()] == ["runs.npz"]
    assert replay(back[0], "cvc", Tabled.tokenizer).value == "yes"


@pytest.mark.parametrize("damage", ["missing", "cut", "text", "other", "old"])
def test_files_that_are_no_recordings_are_refused(tmp_path, damage):
    path = tmp_path / "runs.npz"
    recordings = recorded(Tabled(scripted(("ab" * 5, 0.9))), [[5]], plan=Plan(canvas=10))
    if damage == "old":
        import varifocal.diffusion.recording as module

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "VERSION", 0)
            save_recordings(path, recordings)
    elif damage == "cut":
        save_recordings(path, recordings)
        path.write_bytes(path.read_bytes()[:-200])
    elif damage == "text":
        path.write_text("no recording")
    elif damage == "other":
        np.savez(path, a=np.zeros(3))
    with pytest.raises(BadArtifact, match=r"runs\.npz"):
        load_recordings(path)


def one_recording(law) -> Recording:
    (recording,) = recorded(Tabled(law), [[5]], "number_hash", plan=Plan(canvas=20, block=20))
    return recording


SURE = one_recording(scripted(("#### 7" + "$" * 14, 0.99)))


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("bwec", "the gate bwec cannot be replayed: it commits whole blocks early"),
        ("latch", "the gate latch cannot be replayed: it commits whole blocks early"),
        ("reduced", "the gate reduced cannot be replayed: it commits more tokens a step"),
        ("prophet:place=0.5", "the gate prophet cannot be replayed on this recording: it pins"),
    ],
)
def test_gates_that_change_the_path_are_refused_by_name(gate, said):
    with pytest.raises(BadOption, match=said):
        replay(SURE, gate, Tabled.tokenizer)


def test_a_gate_that_looks_for_an_answer_needs_a_format():
    nameless = replace(SURE, facts=replace(SURE.facts, format=None))
    with pytest.raises(BadOption, match="give format="):
        replay(nameless, "cvc", Tabled.tokenizer)
    assert replay(nameless, "cvc", Tabled.tokenizer, format="number_hash").value == "7"


def test_only_full_runs_are_recorded():
    denoiser = Tabled(scripted(("ab" * 5, 0.9)))
    with pytest.raises(BadOption, match="a recording is of a full run"):
        Decoding(denoiser, [[5]], format="free", gate="cvc", recording=True)
    with pytest.raises(BadOption, match="nothing was recorded"):
        Decoding(denoiser, [[5]], format="free", gate="full").recordings()


# -- the oracle ----------------------------------------------------------------------------------


def told(answer: str, *, sure: float = 0.5) -> tuple[str, list[float]]:
    """An answer that is decided last, on a canvas of twenty."""
    return f"#### {answer}" + "$" * 14, [sure] * 6 + [0.99 - i / 100 for i in range(14)]


def test_the_oracle_stops_when_the_answer_stays_what_it_becomes():
    early = one_recording(scripted(told("7")))
    assert replay(early, "oracle", Tabled.tokenizer).exit_step == 1
    changes = ["7", "8", "7", "8", "8"]
    late = replay(one_recording(scripted(*map(told, changes))), "oracle", Tabled.tokenizer)
    assert late.exit_step == 4 and late.value == "8" and late.nfe == 4


def test_the_oracle_never_stops_without_an_answer():
    result = replay(one_recording(scripted(("x" * 20, 0.9))), "oracle", Tabled.tokenizer)
    assert result.exit_step is None and result.reason == "the final text has no answer"


def test_a_replay_reports_the_recorded_forwards_and_its_own_gate():
    full = replay(SURE, "full", Tabled.tokenizer)
    assert full.seconds["forward"] == pytest.approx(SURE.seconds[:, 0].sum())
    short = replay(SURE, "cvc", Tabled.tokenizer)
    assert short.nfe == 4 and short.seconds["forward"] == pytest.approx(SURE.seconds[:4, 0].sum())
    assert short.seconds["gate"] > 0
