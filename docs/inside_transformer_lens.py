"""A looped model as a HookedRootModule of transformer-lens: one HookPoint for every name of every step."""

import torch
from torch import nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

import looped
from looped.model.inside import hook_modules, hooked


class HookedLoop(HookedRootModule):
    """Runs a fixed number of steps; `run_with_cache` and `run_with_hooks` know the names of the guide."""

    def __init__(self, net: looped.LoopedTransformer, steps: int) -> None:
        super().__init__()
        self.net, self.steps = net, steps
        for t in range(1, steps + 1):
            for name in hook_modules(net):
                self._place(f"step.{t}.{name}".split("."))
        self.setup()

    def _place(self, path: list[str]) -> None:
        parent: nn.Module = self
        for part in path[:-1]:
            if not hasattr(parent, part):
                parent.add_module(part, nn.Module())
            parent = getattr(parent, part)
        parent.add_module(path[-1], HookPoint())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with hooked(self.net, lambda name, value: self.hook_dict[name](value)):
            return self.net(tokens, steps=self.steps).logits


def swap(state: torch.Tensor, hook: HookPoint) -> torch.Tensor:
    state[:, 4] = state[:, 4].flip(0)  # position 4 is the end-of-question token
    return state


# 1 1 1 1 > # # # # and 0 0 0 0 > # # # #
tokens = torch.tensor([[1, 1, 1, 1, 2, 3, 3, 3, 3], [0, 0, 0, 0, 2, 3, 3, 3, 3]])
model = HookedLoop(looped.load("copy").net, steps=4)
with torch.no_grad():
    logits, cache = model.run_with_cache(tokens)
    patched = model.run_with_hooks(tokens, fwd_hooks=[("step.3.state", swap)])

print(sorted(cache)[-5:])
print(logits.argmax(-1)[:, 4:8].tolist(), patched.argmax(-1)[:, 4:8].tolist())
