"""The tokenizer of the shipped models: byte-level BPE over the tasks' texts, digit by digit."""

from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from varifocal.diffusion import tasks

END, MASK = "<|endoftext|>", "<|mask|>"  # END also pads, as in LLaDA and Dream
VOCABULARY = 384


def train_tokenizer(num_items: int = 400) -> PreTrainedTokenizerFast:
    """A tokenizer whose merges come from the training items of all tasks.

    Digits are never merged, so that a number has as many tokens as digits.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in (END, MASK)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(list(_texts(num_items)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=END,
        mask_token=MASK,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def _texts(num_items: int) -> Iterator[str]:
    for name in tasks.names():
        task = tasks.find(name)
        for index in range(num_items):
            item = task.draw(index, "train")
            yield item.prompt
            yield item.answer
