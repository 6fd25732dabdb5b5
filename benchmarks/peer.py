"""The same training written the ordinary way, to measure against: a library's GPT-2 in an eager loop, one seed.

    h ← gpt2(h + x) from h = 0, for every row as often as the longest one needs; all states are kept, and the
    loss of each row is read at its own T. Gradient norm clipped at 1, torch's AdamW, fp32.

Rows are made one by one in plain Python, as the authors make theirs. Positions are zeroed and frozen, since the
paper has none. Knows nothing of the engine; both sides start from the same weights (`Peer.load`), and a test holds
their losses and gradients equal.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from looped.batches import Batch
from looped.errors import InputError
from looped.model.config import ModelConfig
from looped.tasks.base import Task

# our names for a layer's weights → the library's
NAMES = {
    "norm1.scale": "ln_1.weight",
    "norm1.shift": "ln_1.bias",
    "qkv": "attn.c_attn",
    "out": "attn.c_proj",
    "norm2.scale": "ln_2.weight",
    "norm2.shift": "ln_2.bias",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}


def library() -> Any:
    """The library the peer is built from; raises if it is not installed."""
    try:
        import transformers
    except ImportError:
        raise InputError(
            "the peer is built from the package transformers, which is not installed: "
            "`pip install 'looped[bench]'` brings it, and --peer-steps 0 leaves the peer out"
        ) from None
    return transformers


class Peer(nn.Module):
    """Embedding, a GPT-2 that is looped, a linear readout."""

    def __init__(self, config: ModelConfig, row_size: int) -> None:
        super().__init__()
        lib = library()
        shape = lib.GPT2Config(
            vocab_size=config.vocab, n_positions=row_size, n_embd=config.width, n_layer=config.layers,
            n_head=config.heads, n_inner=config.expansion * config.width, use_cache=False,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        self.gpt2 = lib.GPT2Model(shape)
        self.gpt2.wpe.weight.data.zero_()
        self.gpt2.wpe.weight.requires_grad_(False)
        self.gpt2.wte.weight.requires_grad_(False)  # inputs come embedded
        self.embed = nn.Embedding(config.vocab, config.width)
        self.embed_bias = nn.Parameter(torch.zeros(config.width if config.initialisation == "linear" else 0))
        self.readout = nn.Linear(config.width, config.vocab)

    @property
    def attention(self) -> str:
        """Which of its attention functions the library has chosen."""
        return str(self.gpt2.config._attn_implementation)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the weights of one of our seeds, by name (`Layout.to_dict`)."""
        own = dict(self.named_parameters())
        for name, value in weights.items():
            target = own[_peer_name(name)]
            target.data.copy_(value.T if target.shape != value.shape else value)

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross entropy over the positions that count, each row's at its own T."""
        x = self.embed(batch.tokens)
        x = x + self.embed_bias if len(self.embed_bias) else x
        h = torch.zeros_like(x)
        states = []
        for _ in range(int(batch.steps.max())):
            h = self.gpt2(inputs_embeds=h + x).last_hidden_state
            states.append(h)
        rows = torch.arange(len(batch.steps), device=x.device)
        logits = self.readout(torch.stack(states)[batch.steps - 1, rows])
        return F.cross_entropy(logits[batch.loss_mask], batch.targets[batch.loss_mask])


def _peer_name(name: str) -> str:
    """`layers.0.qkv.weight` → `gpt2.h.0.attn.c_attn.weight`."""
    if not name.startswith("layers."):
        return {
            "embed": "embed.weight",
            "embed.bias": "embed_bias",
            "norm.scale": "gpt2.ln_f.weight",
            "norm.shift": "gpt2.ln_f.bias",
        }.get(name, name)
    _, i, rest = name.split(".", 2)
    if rest in NAMES:
        return f"gpt2.h.{i}.{NAMES[rest]}"
    matrix, kind = rest.split(".")
    return f"gpt2.h.{i}.{NAMES[matrix]}.{kind}"


class PeerTrainer:
    """One seed's training at one curriculum stage."""

    def __init__(
        self, task: Task, config: ModelConfig, longest: int, batch: int, device: torch.device, seed: int = 0
    ) -> None:
        self.task, self.longest, self.batch, self.device = task, longest, batch, device
        self.random = random.Random(seed)
        self.model = Peer(config, task.row_size(longest)).to(device)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4)
        self.trained = trained

    def step(self) -> Tensor:
        """One gradient step on fresh rows; the loss."""
        batch = make_rows(self.task, self.longest, self.batch, self.random).to(self.device)
        self.optimizer.zero_grad()
        loss = self.model.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        return loss.detach()


# --- rows, one by one --------------------------------------------------------------------------------------


def make_rows(task: Task, longest: int, count: int, rng: random.Random) -> Batch:
    """Full-output rows of random lengths and variants, answered by the task's oracle, in plain Python."""
    size, vocab = task.row_size(longest), task.vocab
    tokens, targets, counted, steps = [], [], [], []
    for _ in range(count):
        question = draw_question(task, rng.randint(1, longest), rng.randrange(task.variants), rng)
        fed = [*vocab.encode(question), vocab.eoq]
        asked = [*[vocab.eos] * len(question), *vocab.encode(task.solve(question))]
        tokens.append(fed + [vocab.eos] * (size - len(fed)))
        targets.append(asked + [vocab.eos] * (size - len(asked)))
        counted.append([at >= len(question) for at in range(size)])
        steps.append(task.steps_of(question))
    return Batch(torch.tensor(tokens), torch.tensor(targets), torch.tensor(counted), torch.tensor(steps))


def draw_question(task: Task, length: int, variant: int, rng: random.Random) -> list[str]:
    """A random question: tokens that are numbers are drawn anew, signs between them stay where they are."""
    numbers = [name for name in task.vocab.symbols if name.isdecimal()]
    return [rng.choice(numbers) if name.isdecimal() else name for name in _template(task, length, variant)]


@cache
def _template(task: Task, length: int, variant: int) -> tuple[str, ...]:
    problems = task.sample(
        torch.tensor([length]), torch.Generator().manual_seed(0),
        max_length=length, variants=torch.tensor([variant]),
    )  # fmt: skip
    ids = problems.question[0, : int(problems.question_length[0])].tolist()
    return tuple(task.vocab.decode(ids))
