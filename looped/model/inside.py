"""Look inside a loop: what every part of the block gives at every step, under names that stay.

    step.{t}.layer.{l}.attention    what the attention of layer l adds            [B, L, D]
    step.{t}.layer.{l}.mlp          what its feed-forward part adds               [B, L, D]
    step.{t}.layer.{l}.state        the layer's output                            [B, L, D]
    step.{t}.state                  after the final norm: what the next step gets [B, L, D]
    step.{t}.halt                   the halting head at every position, a logit   [B, L]

Steps count from 1, layers from 0. Each name is the output of an ordinary module, so that any tool made for module hooks
applies as well; `net.current_step` tells such a hook at which step it is. What a block of your own lacks has no name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from looped.errors import InputError
from looped.model.looped import LoopedTransformer

PARTS = ("attention", "mlp")
Look = Callable[[str, Tensor], Tensor | None]  # a name and a value; what it returns takes the value's place
Patch = Tensor | Callable[[Tensor], Tensor]  # a value, or what makes one from the value that is there


class States(dict[str, Tensor]):
    """What a loop computed, by name, and the logits it ended with."""

    logits: Tensor  # [B, L, V]


def hook_modules(net: LoopedTransformer) -> dict[str, nn.Module]:
    """The modules whose outputs have names, by the name without its `step.{t}.`."""
    found: dict[str, nn.Module] = {}
    layers = getattr(net.block, "layers", ())
    for number, layer in enumerate(layers if isinstance(layers, nn.ModuleList) else ()):
        parts = {part: getattr(layer, part, None) for part in PARTS} | {"state": layer}
        found |= {f"layer.{number}.{part}": m for part, m in parts.items() if isinstance(m, nn.Module)}
    found["state"] = net.norm
    if net.halting_head is not None:
        found["halt"] = net.halting_head
    return found


@contextmanager
def hooked(net: LoopedTransformer, look: Look) -> Iterator[None]:
    """Within this, `look(name, value)` sees every value of every loop; a tensor that it returns replaces the value.

    The exception is `halt`, which is there to be read: what the loop halts by is computed from the state.
    """

    def hook(name: str) -> Callable[..., Tensor | None]:
        def call(module: nn.Module, given: Any, output: Any) -> Tensor | None:
            if not isinstance(output, Tensor):
                return None  # a part of a user's block that gives several values
            return look(f"step.{net.current_step}.{name}", output)

        return call

    def read(module: nn.Module, given: Any, output: Tensor) -> None:
        assert net.halting_head is not None
        look(f"step.{net.current_step}.halt", net.halting_head(output)[..., 0])

    with ExitStack() as stack:
        # The head comes last: it reads what a patch has made of the state.
        for name, module in hook_modules(net).items():
            at, what = (net.norm, read) if name == "halt" else (module, hook(name))
            stack.enter_context(at.register_forward_hook(what))
        yield


def trace_states(
    net: LoopedTransformer, tokens: Int[Tensor, "B L"], steps: int, patch: Mapping[str, Patch] | None = None
) -> States:
    """Run the loop for `steps` steps: every value by its name, and `.logits` at the end.

    `patch` replaces values on the way: `{"step.3.state": lambda h: h.flip(0)}` swaps the states of two rows after
    step 3. All rows run all steps: nothing is held still where a halting head has spoken.
    """
    states, left = States(), dict(patch or {})

    def look(name: str, value: Tensor) -> Tensor | None:
        new = left.pop(name, None)
        if new is not None:
            made = new if isinstance(new, Tensor) else new(value)
            if made.shape != value.shape:
                raise InputError(f"{name} is {list(value.shape)}, and its patch is {list(made.shape)}")
            value = made
        states[name] = value
        return value

    seen = None
    with torch.no_grad(), hooked(net, look):
        for seen in net.unroll(tokens, steps):  # noqa: B007
            pass
    if seen is None:
        raise InputError(f"the number of loop steps must be at least 1, not {steps}")
    if left:
        raise InputError(f"there is no {next(iter(left))} to patch; there is {', '.join(list(states)[-4:])}")
    states.logits = net.readout(seen).detach()
    return states
