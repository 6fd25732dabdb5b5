"""Change one step of a looped model with nnsight: a module's third occurrence is the loop's third step."""

import torch
from nnsight import NNsight

import looped

net = looped.load("copy").net
# 1 1 1 1 > # # # # and 0 0 0 0 > # # # #
tokens = torch.tensor([[1, 1, 1, 1, 2, 3, 3, 3, 3], [0, 0, 0, 0, 2, 3, 3, 3, 3]])

model = NNsight(net)
with model.trace(tokens, steps=4) as tracer:
    for _step in tracer.iter[2]:  # counted from 0: this is step 3
        state = model.norm.output
        model.norm.output[:, 4] = state[:, 4].flip(0)  # position 4 is the end-of-question token
    logits = model.readout.output.save()

print(logits.argmax(-1)[:, 4:8].tolist())
