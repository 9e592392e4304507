"""Train the demo's tokenizer: byte-level BPE in which printed text is spelt letter by letter."""

from collections.abc import Iterable, Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from varifocal.demo.world import FAMILIES, draw, draw_lines

PAD, END, USER, ASSISTANT, IMAGE = "<pad>", "<|end|>", "<|user|>", "<|assistant|>", "<image>"
SPECIAL = (PAD, END, USER, ASSISTANT, IMAGE)
VOCABULARY = 2048

# Pictures print capitals and digits. One token each makes reading a copy of what is seen, place by
# place; a lower-case word of the templates stays one token. A space goes with the word after it,
# except before a letter that stands alone, so that "A" is one token wherever it stands.
_ISOLATED = Regex(r"\p{N}|\p{Lu}(?!\p{Ll})")

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}{{ '<|assistant|>' }}\
{%- else -%}{{ '<|user|>' }}{%- endif -%}
{%- if message['content'] is string -%}{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] if part['type'] in ('image', 'image_url') -%}
{{ '<image>' }}{%- if loop.last -%}{{ '\\n' }}{%- endif -%}
{%- endfor -%}
{%- for part in message['content'] if part['type'] == 'text' -%}{{ part['text'] }}{%- endfor -%}
{%- endif -%}
{{ '<|end|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"""


def train_tokenizer(num_samples: int = 300) -> PreTrainedTokenizerFast:
    """A tokenizer whose merges come from the questions and answers of all families."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_ISOLATED, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(list(_texts(num_samples)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        extra_special_tokens={"image_token": IMAGE},
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def _texts(num_samples: int) -> Iterator[str]:
    for index in range(num_samples):
        for sample in (*(draw(f, index) for f in FAMILIES), draw_lines(index)):
            for turn in sample.turns:
                yield turn.question
                yield turn.answer


def chat(turns: Iterable[tuple[str, str]]) -> list[dict[str, object]]:
    """Questions and answers about one picture as messages; an empty answer is left out."""
    messages: list[dict[str, object]] = []
    for number, (question, answer) in enumerate(turns):
        content: list[dict[str, str]] = [{"type": "text", "text": question}]
        if number == 0:
            content.insert(0, {"type": "image"})
        messages.append({"role": "user", "content": content})
        if answer:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    return messages
