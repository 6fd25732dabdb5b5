import torch
import torch.nn.functional as F
from torch import nn

from looped.model import Block
from looped.model.attention import CausalAttention


class SwiGLU(nn.Module):  # (a) a layer with SwiGLU behind a gated residual
    def __init__(self, config):
        super().__init__()
        self.attention, d = CausalAttention(config), config.width
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.up, self.down, self.gate = nn.Linear(d, 4 * d), nn.Linear(2 * d, d), nn.Parameter(torch.ones(d))

    def forward(self, h):
        h = h + self.attention(self.norm1(h))
        a, b = self.up(self.norm2(h)).chunk(2, dim=-1)
        return h + self.gate * self.down(F.silu(a) * b)


class StickBreaking(Block):  # (b) another attention in the stock layers: near keys take their share first
    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers:
            layer.attention.attend = self.attend

    @staticmethod
    def attend(q, k, v):  # each [B, H, L, d]
        before = q.new_ones(q.shape[2], q.shape[2]).tril(-1)  # a query sees only keys before it
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(before == 0, -1e4)
        return (F.logsigmoid(scores) + F.logsigmoid(-scores) @ before).exp() @ v


class Shifted(Block):  # (c) a quarter of the channels comes from the position before, at each step
    def forward(self, h):
        some, rest = h.tensor_split((h.shape[-1] // 4,), dim=-1)
        return super().forward(torch.cat([F.pad(some, (0, 0, 1, -1)), rest], dim=-1))
