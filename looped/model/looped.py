"""The looped Transformer as an ordinary `torch.nn.Module` of one seed.

    x = embed(tokens);  h = step(inject(h, x)) again and again, from nothing at first;  logits = readout(h)

`step` is the block and the final norm after it; `inject` adds the embedded input to the state before every step.
`unroll` yields the state after each step. A fixed-depth Transformer is one step.

    >>> net = LoopedTransformer(ModelConfig(vocab=6, layers=1, heads=4, width=32))
    >>> net(torch.tensor([[0, 1, 0, 3, 4, 4]]), steps=3).logits.shape
    torch.Size([1, 6, 6])

Shapes: B rows, L positions, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from looped.errors import InputError
from looped.model import positions
from looped.model.block import Block, norm
from looped.model.config import ModelConfig
from looped.model.halting import Gate
from looped.model.hub import Pretrained
from looped.model.weights import Layout

IGNORED = -100  # a label that does not count, as torch's cross entropy has it

BlockMaker = Callable[[ModelConfig], nn.Module]


@dataclass(frozen=True)
class LoopedOutput:
    """What a forward pass gives."""

    logits: Float[Tensor, "B L V"]  # after each row's last step
    loss: Float[Tensor, ""] | None = None  # mean cross entropy with the labels, if there were any
    states: list[Tensor] | None = None  # [B, L, D] after every step, if asked for


class LoopedTransformer(Pretrained):
    """A decoder whose block is applied as often as a problem needs."""

    def __init__(self, config: ModelConfig, block: BlockMaker | None = None) -> None:
        super().__init__()
        if config.kind != "decoder":
            raise InputError(f"LoopedTransformer is a decoder; looped.fast alone builds kind={config.kind}")
        self.config = config
        self.current_step = 0  # the step that `unroll` is at, from 1, for hooks (`looped.model.inside`)
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        biased = config.initialisation == "linear"
        self.embedding_bias = nn.Parameter(torch.zeros(config.width)) if biased else None
        rows = config.position_rows
        self.position_table = nn.Embedding(rows, config.width) if rows else None
        self.before = Block(config.first) if config.before else None
        self.block = Block(config) if block is None else _made(block, config)
        self.norm = norm(config)
        self.readout = nn.Linear(config.width, config.vocab)
        self.halting_head = nn.Linear(config.width, 1) if config.halting != "none" else None
        self.to(getattr(torch, config.precision))

    @classmethod
    def from_seed(cls, config: ModelConfig, seed: int, block: BlockMaker | None = None) -> LoopedTransformer:
        """A model with the weights that training starts from: a seed means the same in every engine.

        A block of another class than `Block` starts as its own constructor draws it, from the same seed.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = cls(config, block)
        layout = Layout(config)
        drawn = layout.to_dict(layout.initialise([seed])[0])
        own = dict(net.named_parameters())
        ours = isinstance(net.block, Block)
        with torch.no_grad():
            for name, value in _as_module(drawn).items():
                known = name in own and own[name].shape == value.shape
                if known and (ours or not name.startswith("block.")):
                    own[name].copy_(value)
        return net

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        steps: int | Int[Tensor, "B"],
        labels: Int[Tensor, "B L"] | None = None,
        return_states: bool = False,
    ) -> LoopedOutput:
        """Loop `steps` times, the same for all rows or each row its own number, and read the result.

        Labels of -100 do not count. A row that is done keeps its state while the others go on.
        """
        last = steps if isinstance(steps, int) else int(steps.max())
        states: list[Tensor] = []
        final: Tensor | None = None
        for t, h in enumerate(self.unroll(tokens, last), 1):
            running = torch.full_like(tokens[:, 0], t) <= steps
            final = h if final is None else torch.where(running[:, None, None], h, final)
            if return_states:
                states.append(h)
        if final is None:
            raise InputError(f"the number of loop steps must be at least 1, not {last}")
        logits = self.readout(final)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return LoopedOutput(logits, loss, states if return_states else None)

    def embed(
        self, tokens: Int[Tensor, "B L"], at: Int[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """The input as a state; `at` overrides the position numbers."""
        x: Tensor = self.token_embedding(tokens)
        if self.embedding_bias is not None:
            x = x + self.embedding_bias
        if self.position_table is not None:
            if at is None:
                at = positions.places(self.config, len(tokens), tokens.shape[1], tokens.device)
            x = x + positions.embed(self.config, self.position_table.weight[None], at)[0]
        return x if self.before is None else self.before(x)

    def inject(self, h: Float[Tensor, "B L D"] | None, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """What a step is applied to: see the function of the same name."""
        return inject(self.config, h, x)

    def step(self, u: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """The block and the final norm."""
        return self.norm(_like(u, self.block(u)))  # type: ignore[no-any-return]

    def unroll(
        self, tokens: Int[Tensor, "B L"], steps: int, counted: Bool[Tensor, "B L"] | None = None
    ) -> Iterator[Float[Tensor, "B L D"]]:
        """What can be read after step 1, 2, …, `steps`: the state, unless a halting head says otherwise.

        `counted` are the positions of the answer; the head of halting="eoq" reads the first of them.
        """
        x = self.embed(tokens)
        gate = self.gate(counted)
        seen, h = x, None
        for t in range(1, steps + 1):
            self.current_step = t
            if not gate.finished:
                seen, h = (y[0] for y in gate.after(self.step(self.inject(h, x))[None]))
            yield seen

    def gate(self, counted: Bool[Tensor, "B L"] | None = None) -> Gate:
        """What follows rows through the loop and applies the halting head, on states [1, B, L, D]."""
        return Gate(self.config.halting, self.head, None if counted is None else counted[None])

    @property
    def head(self) -> tuple[Tensor, ...]:
        """The halting head as `looped.model.halting` takes it: weight [1, 1, 1, D] and bias [1, 1, 1]."""
        if self.halting_head is None:
            return ()
        return self.halting_head.weight.view(1, 1, 1, -1), self.halting_head.bias.view(1, 1, 1)


def _like(u: Tensor, h: Tensor) -> Tensor:
    """What a block made of a state; raises unless it is one of the same shape."""
    if (found := getattr(h, "shape", type(h).__name__)) != u.shape:
        made = tuple(found) if isinstance(found, torch.Size) else found
        raise InputError(
            f"the block must return a state of the shape it is given, {tuple(u.shape)}, not {made}"
        )
    return h


def _made(block: BlockMaker, config: ModelConfig) -> nn.Module:
    """A block of the user's own."""
    name = getattr(block, "__qualname__", type(block).__name__)
    try:
        made = block(config)
    except TypeError as error:
        raise InputError(f"the block {name} could not be made from a ModelConfig: {error}") from error
    if not isinstance(made, nn.Module):
        raise InputError(
            f"the block {name} must be a torch.nn.Module or return one, not {type(made).__name__}"
        )
    return made


def inject(
    config: ModelConfig, h: Float[Tensor, "*S B L D"] | None, x: Float[Tensor, "*S B L D"]
) -> Float[Tensor, "*S B L D"]:
    """The input alone at first, then state plus input, or the state alone.

    With a relay, every position takes its first entries from the row's last one, which has seen the whole row.
    """
    u = x if h is None else h + x if config.injection else h
    if not config.relay:
        return u
    told = u[..., -1:, : config.relay].expand(*u.shape[:-1], config.relay)
    return torch.cat([told, u[..., config.relay :]], dim=-1)


# --- checkpoints ----------------------------------------------------------------------------------------------

# Names in a checkpoint's file, and in the module: whole ones, then parts between dots. A file has its matrices as
# [in, out], the module as [out, in]: `layers.0.qkv.weight` is `block.layers.0.attention.qkv.weight`, transposed.
NAMES = {
    "embed": "token_embedding.weight",
    "embed.bias": "embedding_bias",
    "position": "position_table.weight",
}
PARTS = {
    "layers": "block.layers", "before": "before.layers", "halt": "halting_head", "scale": "weight", "shift": "bias",
    "qkv": "attention.qkv", "out": "attention.out", "up": "mlp.up", "down": "mlp.down",
}  # fmt: skip


def load_checkpoint_weights(net: LoopedTransformer, weights: Mapping[str, Tensor]) -> None:
    """Fill a model with the weights of a checkpoint, named and laid out as files hold them."""
    Layout(net.config).from_dict(weights)  # complains about missing, foreign and misshapen weights
    net.load_state_dict(_as_module(weights))


def checkpoint_weights(net: LoopedTransformer) -> dict[str, Tensor]:
    """A model's weights, named and laid out as checkpoint files hold them; for models of the stock block."""
    state = net.state_dict()
    found: dict[str, Tensor] = {}
    for name, slot in Layout(net.config).slots.items():
        there = _module_name(name)
        if there not in state:
            raise InputError(
                f"the model has no {there}: only the stock block has a checkpoint of this layout"
            )
        value = state.pop(there).detach().float().cpu()
        found[name] = _turned(name, value).reshape(slot.shape).clone().contiguous()
    if state:
        raise InputError(f"the model's {next(iter(state))} has no place in a checkpoint of the stock block")
    return found


def _as_module(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's weights under the module's names and in its shapes."""
    return {_module_name(name): _turned(name, value) for name, value in weights.items()}


def _module_name(name: str) -> str:
    return NAMES.get(name) or ".".join(PARTS.get(part, part) for part in name.split("."))


def _turned(name: str, value: Tensor) -> Tensor:
    """A matrix transposed, and `halt.weight`, a vector in the file, made one row; other weights are as they are."""
    return value.reshape(len(value), -1).T if name.endswith(".weight") else value
