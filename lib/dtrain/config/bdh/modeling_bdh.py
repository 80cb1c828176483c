"""BDH (The Dragon Hatchling, arXiv 2509.26507) in plain PyTorch.

Shapes in the comments: B sequences of T tokens, vocabulary V, width D, H heads of N neurons.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_bdh import BdhConfig

INITIAL_STD = 0.02


def layer_norm(x):
    return F.layer_norm(x, x.shape[-1:], eps=1e-5)


def rope_table(length, neurons, device):
    """Cosines and sines (T, N / 2) of RoPE with base 2^16. They are float32 in models of every dtype."""
    exponents = torch.arange(0, neurons, 2, dtype=torch.float32, device="cpu") / neurons
    # On the CPU, in float64 and rounded once: another rounding of a frequency grows with the position.
    turns_per_position = 1 / torch.pow(2.0, 16 * exponents.double()).float() / (2 * math.pi)
    positions = torch.arange(length, dtype=torch.float32, device=device)
    angles = torch.outer(positions, turns_per_position.to(device)) % 1 * (2 * math.pi)
    return angles.cos(), angles.sin()


def rotate(x, table):
    """Rotates the pairs (2k, 2k + 1) of x (B, H, T, N). The result is at least float32."""
    cosine, sine = table
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, odd * cosine + even * sine), dim=-1).flatten(-2)


def attend(x, neurons, mask, table):
    """Linear attention of each head to earlier positions, without softmax; queries equal keys."""
    q = rotate(neurons, table)  # (B, H, T, N)
    if mask is not None:
        q = q * mask[:, None, :, None]
    scores = (q @ q.mT).tril(-1)  # (B, H, T, T); sums of squares, which float16 could not hold
    return layer_norm(scores @ x.to(scores.dtype)).to(x.dtype)  # (B, H, T, D)


def new_matrices(config):
    heads, neurons, width = config.num_attention_heads, config.neurons_per_head, config.hidden_size
    return {"encoder": nn.Parameter(torch.empty(heads, width, neurons)),
            "encoder_v": nn.Parameter(torch.empty(heads, width, neurons)),
            "decoder": nn.Parameter(torch.empty(heads * neurons, width))}


class BdhForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = BdhConfig
    _is_stateful = True  # for generate: there is no cache to create, or to cut as assisted generation does

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.tie_layers:
            for name, matrix in new_matrices(config).items():
                self.register_parameter(name, matrix)
        else:
            self.levels = nn.ModuleList(nn.ParameterDict(new_matrices(config)) for _ in range(config.num_hidden_layers))
        self.lm_head = nn.Parameter(torch.empty(config.hidden_size, config.vocab_size))
        self.post_init()

    def _init_weights(self, module):
        for parameter in module.parameters(recurse=False):
            nn.init.normal_(parameter, std=INITIAL_STD)

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return None  # lm_head is a matrix (D, V), not a module

    def resize_token_embeddings(self, *args, **kwargs):
        raise NotImplementedError("a BDH model keeps its vocabulary")

    def level(self, x, matrices, mask, table):
        xs = F.relu(x @ matrices.encoder)  # (B, H, T, N)
        ys = F.relu(attend(x, xs, mask, table) @ matrices.encoder_v)  # (B, H, T, N)
        gated = F.dropout(xs * ys, self.config.dropout, self.training)
        y = layer_norm(gated.transpose(1, 2).flatten(2) @ matrices.decoder)  # (B, T, D)
        return layer_norm(x + y.unsqueeze(1))  # (B, 1, T, D)

    def forward(self, input_ids, attention_mask=None, labels=None, **kwargs):
        """input_ids (B, T); attention_mask (B, T): 0 at padding; labels (B, T): equal to input_ids, -100 to ignore."""
        length, longest = input_ids.shape[1], self.config.max_position_embeddings
        if length > longest:
            raise ValueError(f"a sequence of {length} tokens exceeds max_position_embeddings {longest}")
        table = rope_table(length, self.config.neurons_per_head, input_ids.device)
        x = layer_norm(self.embed(input_ids)).unsqueeze(1)  # (B, 1, T, D): one input for every head
        for matrices in [self] * self.config.num_hidden_layers if self.config.tie_layers else self.levels:
            x = self.level(x, matrices, attention_mask, table)
        logits = x.squeeze(1) @ self.lm_head  # (B, T, V)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **kwargs):
        """The whole sequence for each new token: there is no cache."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}
