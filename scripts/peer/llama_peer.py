"""PyTorch peer for side-by-side benchmarks: transformers' own Llama, with its default attention (sdpa). Its arguments are the sizes of
a configuration file, where an absent size has dtrain's default. Not part of the product.
"""
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class Llama(nn.Module):
    def __init__(self, layers, width, heads, intermediate_size, kv_heads=None, head_dim=None, rope_theta=10000,
                 tie_embeddings=False, max_positions=2048, vocab=256, dropout=0.0):
        super().__init__()
        if dropout != 0:
            raise ValueError(f"dropout {dropout}: transformers' Llama has none but in attention, dtrain's none in attention; use 0")
        self.model = LlamaForCausalLM(LlamaConfig(
            num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
            intermediate_size=intermediate_size, rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
            rms_norm_eps=1e-5, tie_word_embeddings=tie_embeddings, max_position_embeddings=max_positions, vocab_size=vocab,
            use_cache=False))  # training needs no cache

    def forward(self, ids, targets):  # both (B, T)
        return self.model(ids, labels=targets, shift_labels=targets).loss  # as many targets as dtrain has
