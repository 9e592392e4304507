"""Plain decoding with static tensors, which a CUDA graph can hold: the baseline to beat."""

import inspect
from collections.abc import Callable

import torch
from transformers import StaticCache

from varifocal.target import Prompt
from varifocal.targets.llava_next import LlavaNextTarget


class StaticStep:
    """Plain decoding in which nothing but the contents of tensors changes: a graph can hold it.

    It keeps transformers' StaticCache. Our own `KVCache` hands out views whose length is a number
    of the host, so a graph of it would read one length for ever; it pays for a tree's rows alone
    where the static one reads its whole buffer.
    """

    def __init__(self, target: LlavaNextTarget, prompt: Prompt, room: int) -> None:
        self._target, self._length = target, len(prompt.tokens)
        self._decoder = target.text_parts()[0]
        config = target.model.config.get_text_config()
        size = self._length + room
        self._cache = StaticCache(config=config, max_cache_len=size)
        known = inspect.signature(type(self._decoder).forward).parameters
        self._keyword = "cache" if "cache" in known else "past_key_values"
        self._columns = torch.arange(size, device=target.device)
        self._position = torch.arange(self._length, device=target.device)
        self.token = prompt.tokens.clone()  # what is read next
        self._first = self._next()  # reads the prompt
        self.token = self._first.clone()
        self._position = torch.tensor([self._length], device=target.device)

    def __call__(self) -> None:
        """Read a token and choose the next."""
        self.token.copy_(self._next())
        self._position.add_(1)

    def rewind(self) -> None:
        """Back to the end of the prompt, in place: a graph knows tensors by their address."""
        self.token.copy_(self._first)
        self._position.fill_(self._length)
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(self._length)

    def tokens(self, count: int, step: Callable[[], None]) -> list[int]:
        """The first tokens of the answer."""
        self.rewind()
        found = [int(self.token)]
        for _ in range(count - 1):
            step()
            found.append(int(self.token))
        return found

    def _next(self) -> torch.Tensor:
        lowest = torch.finfo(self._target.dtype).min
        hidden = self._columns[None] > self._position[:, None]
        mask = torch.zeros(hidden.shape, dtype=self._target.dtype, device=hidden.device)
        out = self._decoder(
            inputs_embeds=self._target.embed(self.token)[None],
            attention_mask=mask.masked_fill(hidden, lowest)[None, None],
            position_ids=self._position[None],
            use_cache=True,
            **{self._keyword: self._cache},
        )
        return self._target.head(out.last_hidden_state[0, -1:]).argmax(-1)


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is made at the first calls must not be captured
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
