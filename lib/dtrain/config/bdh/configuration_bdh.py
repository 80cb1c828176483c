"""Settings of a BDH model (The Dragon Hatchling, arXiv 2509.26507)."""

from transformers import PretrainedConfig


class BdhConfig(PretrainedConfig):
    model_type = "bdh"

    def __init__(self, vocab_size=256, hidden_size=256, num_hidden_layers=6, num_attention_heads=4, neurons_per_head=8192,
                 tie_layers=True, dropout=0.1, max_position_embeddings=65536, tie_word_embeddings=False, **kwargs):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.neurons_per_head = neurons_per_head
        self.tie_layers = tie_layers  # all layers share one set of matrices
        self.dropout = dropout
        self.max_position_embeddings = max_position_embeddings  # float32 does not hold the angles of later positions
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
