import logging

import pytest
import torch
from tiny import picture, tiny_target
from torch import nn

from varifocal import fast
from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.fast import PackedLinear, fast_drafter, fast_target, is_packed, prepack
from varifocal.request import ask

needs_ops = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch was built without oneDNN"
)
pytestmark = needs_ops


def layer(width: int, out: int, dtype: torch.dtype, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(width, out, bias=bias).to(dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 256), (3, 256), (2, 5, 256), (1, 300, 256)])
def test_packed_bfloat16_is_bit_equal(shape, bias):
    linear = layer(256, 704, torch.bfloat16, bias)
    x = torch.randn(shape).bfloat16()
    with torch.inference_mode():
        assert torch.equal(PackedLinear(linear)(x), linear(x))


@pytest.mark.parametrize("rows", [1, 3, 4, 41])
def test_packed_float32_agrees(rows):
    linear = layer(704, 256, torch.float32)
    x = torch.randn(rows, 704)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear)(x), linear(x), atol=3e-6, rtol=1e-5)


def test_packed_reads_slices_and_transposed_rows():
    linear = layer(256, 704, torch.bfloat16)
    packed = PackedLinear(linear)
    x = torch.randn(7, 512).bfloat16()[:, ::2]
    y = torch.randn(256, 7).bfloat16().T
    with torch.inference_mode():
        assert torch.equal(packed(x), linear(x))
        assert torch.equal(packed(y), linear(y))


def test_report_names_what_was_packed_and_what_was_not(caplog):
    class Odd(nn.Linear):
        pass

    module = nn.ModuleDict(
        {
            "good": layer(256, 704, torch.bfloat16),
            "odd": Odd(256, 704),
            "narrow": layer(256, 704, torch.float16),
            "small": layer(8, 8, torch.float32),
            "inner": nn.Sequential(layer(256, 704, torch.bfloat16)),
        }
    )
    with caplog.at_level(logging.INFO):
        report = prepack(module)
    assert set(report.packed) == {"good", "inner.0"}
    reasons = dict(report.skipped)
    assert "Odd" in reasons["odd"]
    assert "float16" in reasons["narrow"]
    assert "small" in reasons["small"]
    assert "2 linear layers packed, 3 left alone" in caplog.text


def test_nothing_is_packed_without_the_operators(monkeypatch, caplog):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    module = nn.Sequential(layer(256, 704, torch.bfloat16))
    with caplog.at_level(logging.WARNING):
        report = prepack(module)
    assert not report.packed and not is_packed(module)
    assert "oneDNN" in caplog.text


def test_checkpoint_keys_stay_and_moving_is_refused():
    module = nn.Sequential(layer(256, 704, torch.bfloat16))
    keys = list(module.state_dict())
    prepack(module)
    assert list(module.state_dict()) == keys
    with pytest.raises(RuntimeError, match="move the model first"):
        module.float()


def test_fast_target_is_a_second_one_with_the_same_text_and_fingerprint():
    target = tiny_target(dtype=torch.bfloat16)
    twin = fast_target(target)
    assert is_packed(twin.model) and not is_packed(target.model)
    assert twin.fingerprint == target.fingerprint
    ours = {id(m) for m in target.model.modules()}
    assert not ours & {id(m) for m in twin.model.modules()}
    assert twin.model.config is not target.model.config
    request = ask("What is this?", [picture()], max_new_tokens=12)
    texts = [generate(t, load_drafter("plain", t), request).token_ids for t in (target, twin)]
    assert texts[0] == texts[1]
    assert fast_target(twin) is twin


def test_fast_target_packs_the_decoder_and_the_head_only():
    twin = fast_target(tiny_target(dtype=torch.bfloat16))
    packed = {n for n, m in twin.model.named_modules() if isinstance(m, PackedLinear)}
    assert "lm_head" in packed
    assert any("language_model.layers.0" in n for n in packed)
    assert not any("vision_tower" in n for n in packed)


def test_exact_rows_survive_packing():
    twin = fast_target(tiny_target(dtype=torch.bfloat16, exact_rows=True))
    assert twin.exact_rows


def test_fast_drafter_packs_networks_and_spares_the_target():
    target = tiny_target(dtype=torch.bfloat16)
    drafter = load_drafter("lookup", target)
    assert fast_drafter(drafter) == fast.Packing()
    drafter.network = nn.Sequential(layer(256, 704, torch.bfloat16))
    assert fast_drafter(drafter).packed == ("0",)
    assert not is_packed(target.model)
