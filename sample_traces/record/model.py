"""The toy language model that most runs train, sized so that its traffic can be read exactly.

Every dimension divides by 8, so no sharding pads. There are no biases, so that even the smallest
parameter (a norm of 640 elements, 1,280 bytes in bf16) is above the 1 KiB under which a collective
counts as bookkeeping. The hidden sizes all differ, so that each layer's messages can be told apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VOCABULARY = 64
DIMENSION = 640
HIDDEN_SIZES = (96, 128, 160, 224)
SEQUENCES = 8
SEQUENCE_LENGTH = 32


class Block(nn.Module):
    """A residual feed-forward block."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(DIMENSION)
        self.up = nn.Linear(DIMENSION, hidden, bias=False)
        self.down = nn.Linear(hidden, DIMENSION, bias=False)

    def forward(self, activations: Tensor) -> Tensor:
        """Add the feed-forward of the normalised activations."""
        hidden = functional.gelu(self.up(self.norm(activations)))
        change: Tensor = self.down(hidden)
        return activations + change


class ToyLanguageModel(nn.Module):
    """Embedding, blocks, norm and head; a pipeline stage leaves out what it does not hold."""

    def __init__(
        self,
        hidden_sizes: Sequence[int] = HIDDEN_SIZES,
        *,
        first: bool = True,
        last: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIMENSION) if first else nn.Identity()
        self.blocks = nn.Sequential(*(Block(hidden) for hidden in hidden_sizes))
        self.norm = nn.RMSNorm(DIMENSION) if last else nn.Identity()
        self.head = nn.Linear(DIMENSION, VOCABULARY, bias=False) if last else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every position."""
        logits: Tensor = self.head(self.norm(self.blocks(self.embedding(tokens))))
        return logits


def random_tokens(sequences: int = SEQUENCES) -> Tensor:
    """Return a batch of random tokens."""
    return torch.randint(VOCABULARY, (sequences, SEQUENCE_LENGTH))


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of the logits, computed in fp32."""
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def count(parameters: Iterable[nn.Parameter]) -> int:
    """Return the number of elements; call it before anything shards the parameters."""
    return sum(parameter.numel() for parameter in parameters)


def count_root(model: ToyLanguageModel) -> int:
    """Return the elements that FSDP's root unit holds itself, outside the wrapped blocks."""
    return count(model.parameters()) - count(model.blocks.parameters())
