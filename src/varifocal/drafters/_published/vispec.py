"""ViSpec: EAGLE-2's tensors, and those of the adaptor of pictures."""

from varifocal.drafters._published.eagle import joined
from varifocal.drafters._published.facts import Facts
from varifocal.drafters._published.files import Checkpoint
from varifocal.drafters._published.table import Entry, How, Reading
from varifocal.target import Target


def read(checkpoint: Checkpoint, target: Target) -> Reading:
    """img_fc over [state; g] is kept here as its halves; the config does not tell num_q."""
    facts = Facts(checkpoint)
    settings, entries = joined(facts, target)
    num_queries, heads, width = (facts.size("imadpt.q", axis) for axis in range(3))
    if (heads, width) != (settings["heads"], settings["head_width"]):
        checkpoint.refuse(
            f"its adaptor has {heads} heads of {width}, and its layer {settings['heads']} of "
            f"{settings['head_width']}; ours share one shape"
        )
    if settings["kv_heads"] != heads:
        checkpoint.refuse(
            f"its layer shares {settings['kv_heads']} heads of keys among {heads} queries, and its "
            "adaptor does not; ours share one shape"
        )
    bias = facts.there("imadpt.k_proj.bias")
    if bias != settings["bias"] or facts.there("img_fc.bias") != settings["join_bias"]:
        checkpoint.refuse(
            "its adaptor has biases where its layer has none, or the other way round; ours share "
            "one setting"
        )
    entries += [
        Entry("img_fc_state.weight", ("img_fc.weight",), How.LEFT),
        Entry("img_fc_global.weight", ("img_fc.weight",), How.RIGHT),
        Entry("adaptor.queries", ("imadpt.q",)),
        Entry("adaptor.kv.weight", ("imadpt.k_proj.weight", "imadpt.v_proj.weight")),
        Entry("adaptor.out.weight", ("imadpt.o_proj.weight",)),
    ]
    if settings["join_bias"]:
        entries.append(Entry("img_fc_global.bias", ("img_fc.bias",)))
    if bias:
        entries.append(Entry("adaptor.kv.bias", ("imadpt.k_proj.bias", "imadpt.v_proj.bias")))
    return Reading(
        layout="ViSpec",
        drafter="vispec",
        settings={**settings, "num_queries": num_queries},
        entries=entries,
        unneeded=(r"embed_tokens\.weight",),
    )
