"""PyTorch peer for side-by-side benchmarks: a GPT-2 with the operations of dtrain's (docs/guide/families.md), as a PyTorch user would
write it. Its arguments are the sizes of a configuration file. Not part of the product.
"""
import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width, heads, dropout, biases):
        super().__init__()
        self.heads = heads
        self.dropout = nn.Dropout(dropout)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width, bias=biases), nn.LayerNorm(width, bias=biases)
        self.packed = nn.Linear(width, 3 * width, bias=biases)  # query, key, value
        self.output = nn.Linear(width, width, bias=biases)
        self.up, self.down = nn.Linear(width, 4 * width, bias=biases), nn.Linear(4 * width, width, bias=biases)

    def attend(self, x):  # (B, T, D)
        batch, length, _ = x.shape
        maps = self.packed(x).view(batch, length, 3, self.heads, -1)
        query, key, value = (part.transpose(1, 2) for part in maps.unbind(2))  # each (B, H, T, d)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(attended.transpose(1, 2).reshape(x.shape))

    def forward(self, x):
        x = x + self.dropout(self.attend(self.attention_norm(x)))
        hidden = F.gelu(self.up(self.mlp_norm(x)), approximate="tanh")  # (B, T, 4D)
        return x + self.dropout(self.down(hidden))


class Gpt2(nn.Module):
    def __init__(self, layers, width, heads, learned_positions=1024, biases=True, vocab=256, dropout=0.1):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(learned_positions, width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(*(Layer(width, heads, dropout, biases) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=biases)
        for weight in (each for each in self.parameters() if each.dim() > 1):
            nn.init.normal_(weight, std=0.02)

    def forward(self, ids, targets):  # both (B, T)
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(positions))
        logits = F.linear(self.norm(self.layers(x)), self.tokens.weight)  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
