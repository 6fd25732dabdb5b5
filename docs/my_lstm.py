import torch
from torch import nn

import looped
from looped import tasks

vocab = tasks.get("copy").vocab


class PlainLSTM(nn.Module):  # reads the question, then writes a token at each position that follows
    trained_to = 8  # the longest training length, which the row states

    def __init__(self, steps=400):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.lstm = nn.Embedding(len(vocab), 64), nn.LSTM(64, 128, batch_first=True)
        self.readout = nn.Linear(128, len(vocab))
        optimizer = torch.optim.Adam(self.parameters(), lr=3e-3)
        for _, batch in zip(range(steps), looped.data("copy", max_length=self.trained_to), strict=False):
            scores = self.scores(batch.tokens)[batch.loss_mask]
            nn.functional.cross_entropy(scores, batch.targets[batch.loss_mask]).backward()
            optimizer.step()
            optimizer.zero_grad()

    def scores(self, tokens):
        return self.readout(self.lstm(self.embed(tokens))[0])

    @torch.no_grad()
    def forward(self, question):  # the adapter: names of tokens to names of tokens, ["1", "0"] → ["1", "0"]
        row = [*vocab.encode(question), vocab.eoq, *[vocab.eos] * (len(question) + 1)]
        ids = self.scores(torch.tensor([row]))[0, len(question) :].argmax(-1).tolist()
        return vocab.decode(ids[: ids.index(vocab.eos)] if vocab.eos in ids else ids)
