#include "dtrain/model/llama/llama.h"

#include <fmt/format.h>

#include "dtrain/base/error.h"
#include "dtrain/model/family.h"
#include "dtrain/model/llama/internal/llama_blocks.h"
#include "dtrain/model/llama/internal/llama_generator.h"
#include "dtrain/model/transformer/operations.h"

namespace dtrain::model::llama {
namespace {

using config::ModelConfig;
using param::ParameterId;
using param::ParameterKind;

LayerParameters add_layer(ParameterList& list, const LlamaSlice& slice, std::int64_t layer) {
  using enum ParameterKind;
  const LlamaSizes& sizes = slice.whole;
  const std::int64_t d = sizes.head_dim;
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.";
  const std::int64_t queries = sizes.heads * d;
  const std::int64_t keys = sizes.kv_heads * d;
  const HeldRange query_rows{0, slice.first_head * d, slice.heads * d};
  const HeldRange query_columns{1, query_rows.begin, query_rows.count};
  const HeldRange key_rows = slice.splits_kv
                                 ? HeldRange{0, slice.first_kv_head * d, slice.kv_heads * d}
                                 : HeldRange{0, 0, keys};
  const HeldRange hidden_rows{0, slice.first_hidden, slice.intermediate};
  const HeldRange hidden_columns{1, hidden_rows.begin, hidden_rows.count};

  LayerParameters ids{};
  ids.input_norm = list.add(prefix + "input_layernorm.weight", norm, {sizes.width});
  ids.query = list.add(attention + "q_proj.weight", matrix, {queries, sizes.width}, query_rows);
  ids.key = list.add(attention + "k_proj.weight", matrix, {keys, sizes.width}, key_rows);
  ids.value = list.add(attention + "v_proj.weight", matrix, {keys, sizes.width}, key_rows);
  ids.output = list.add(attention + "o_proj.weight", matrix, {sizes.width, queries}, query_columns);
  if (sizes.biases_qkv) {
    ids.query_bias = list.add(attention + "q_proj.bias", bias, {queries}, query_rows);
    ids.key_bias = list.add(attention + "k_proj.bias", bias, {keys}, key_rows);
    ids.value_bias = list.add(attention + "v_proj.bias", bias, {keys}, key_rows);
  }
  if (sizes.biases_output) {
    ids.output_bias = list.add(attention + "o_proj.bias", bias, {sizes.width});
  }
  if (sizes.norms_heads) {
    ids.query_norm = list.add(attention + "q_norm.weight", norm, {d});
    ids.key_norm = list.add(attention + "k_norm.weight", norm, {d});
  }
  ids.attended_norm = list.add(prefix + "post_attention_layernorm.weight", norm, {sizes.width});
  ids.gate = list.add(prefix + "mlp.gate_proj.weight", matrix, {sizes.intermediate, sizes.width},
                      hidden_rows);
  ids.up = list.add(prefix + "mlp.up_proj.weight", matrix, {sizes.intermediate, sizes.width},
                    hidden_rows);
  ids.down = list.add(prefix + "mlp.down_proj.weight", matrix, {sizes.width, sizes.intermediate},
                      hidden_columns);
  return ids;
}

BlockCost layer_cost(const LlamaSlice& slice, std::int64_t seq_len) {
  const LlamaSizes& sizes = slice.whole;
  const auto width = static_cast<double>(sizes.width);
  const double flops = config::llama::layer_flops({.width = sizes.width,
                                                   .queries = sizes.heads * sizes.head_dim,
                                                   .keys = sizes.kv_heads * sizes.head_dim,
                                                   .intermediate = sizes.intermediate},
                                                  seq_len);
  // Attention and MLP each all-reduce their output and the gradient of their input.
  return {.forward_flops_per_token = flops,
          .reduced_values_per_token = slice.place.is_whole() ? 0 : 4 * width};
}

std::int64_t count_layers(const TensorShapes& tensors) {
  std::int64_t layers = 0;
  while (tensors.has(fmt::format("model.layers.{}.input_layernorm.weight", layers))) ++layers;
  return layers;
}

// Older files hold RoPE's frequencies, which follow from the settings.
std::vector<std::string> unused_tensors_of(std::int64_t layers) {
  std::vector<std::string> names{"model.rotary_emb.inv_freq"};
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    names.push_back(fmt::format("model.layers.{}.self_attn.rotary_emb.inv_freq", layer));
  }
  return names;
}

class LlamaFamily final : public Family {
 public:
  std::unique_ptr<Model> make(const ModelConfig& config, std::int64_t seq_len,
                              const TensorCoordinate& place,
                              const ComputeOptions& computation) const override {
    return make_llama(sizes_of(config), seq_len, place, computation.kernels);
  }

  bool recognises(const TensorShapes& tensors) const override {
    return tensors.has("model.layers.0.self_attn.q_proj.weight");
  }

  // Shapes determine neither heads nor RoPE nor epsilon: these are the defaults.
  ModelConfig read_sizes(const TensorShapes& tensors, const UserHints& /*hints*/) const override {
    const std::string attention = "model.layers.0.self_attn.";
    ModelConfig found{.layers = count_layers(tensors),
                      .width = tensors.size("model.embed_tokens.weight", 2, 1),
                      .vocab = tensors.size("model.embed_tokens.weight", 2, 0)};
    config::llama::Settings& own = config::llama::settings_of(found);
    own.intermediate = tensors.size("model.layers.0.mlp.gate_proj.weight", 2, 0);
    own.tie_embeddings = !tensors.has("lm_head.weight");
    own.query_key_norm = tensors.has(attention + "q_norm.weight");
    return found;
  }

  std::vector<ReportedValue> reported_values(const ModelConfig& config, std::int64_t rows,
                                             std::int64_t length) const override {
    return stream_values(config, rows, length);
  }

  std::int64_t max_positions(const ModelConfig& config) const override {
    return config::llama::settings_of(config).max_positions;
  }

  // The cache.
  std::int64_t generator_bytes(const ModelConfig& config, at::ScalarType dtype,
                               std::int64_t positions) const override {
    return KeyValueCache::bytes(cache_sizes_of(sizes_of(config), max_positions(config)), positions,
                                dtype);
  }

  std::int64_t prompt_bytes(const ModelConfig& config, at::ScalarType dtype,
                            std::int64_t prompt) const override {
    return CachedGenerator::prompt_bytes(config, dtype, prompt);
  }

  std::unique_ptr<Generator> make_generator(const ModelConfig& config,
                                            const param::Arena& weights) const override {
    return std::make_unique<LlamaGenerator>(sizes_of(config), max_positions(config), weights);
  }
};

}  // namespace

LlamaSizes sizes_of(const ModelConfig& config) {
  using Bias = config::llama::AttentionBias;
  const config::llama::Settings& own = config::llama::settings_of(config);
  return {.layers = config.layers,
          .width = config.width,
          .heads = config.heads,
          .kv_heads = config::llama::kv_heads_of(config),
          .head_dim = config::llama::head_dim_of(config),
          .intermediate = config::llama::intermediate_of(config),
          .vocab = config.vocab,
          .dropout = config.dropout,
          .norm_epsilon = own.norm_epsilon,
          .init_stddev = own.init_stddev,
          .rope = own.rope,
          .biases_qkv = own.attention_bias != Bias::none,
          .biases_output = own.attention_bias == Bias::all,
          .norms_heads = own.query_key_norm,
          .ties_embeddings = own.tie_embeddings};
}

LlamaSlice slice_of(const LlamaSizes& sizes, const TensorCoordinate& place) {
  DTRAIN_CHECK(0 <= place.index && place.index < place.size);
  check_divides(place.size, "--heads", sizes.heads);
  const std::int64_t group = sizes.heads / sizes.kv_heads;
  LlamaSlice slice{.whole = sizes, .place = place};
  slice.heads = sizes.heads / place.size;
  slice.first_head = place.index * slice.heads;
  slice.splits_kv = sizes.kv_heads % place.size == 0;
  slice.first_kv_head = slice.first_head / group;
  slice.kv_heads = (slice.first_head + slice.heads - 1) / group - slice.first_kv_head + 1;
  const TensorPart hidden = part_of(place, "--intermediate-size", sizes.intermediate);
  slice.intermediate = hidden.count;
  slice.first_hidden = hidden.begin;
  slice.vocab = vocabulary_of(sizes.vocab, place);
  return slice;
}

LlamaParameters parameters_of(const LlamaSlice& slice) {
  const LlamaSizes& sizes = slice.whole;
  ParameterList list(sizes.init_stddev);
  LlamaParameters all;
  all.embed = list.add("model.embed_tokens.weight", ParameterKind::embedding,
                       {sizes.vocab, sizes.width}, slice.vocab.rows());
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    all.layers.push_back(add_layer(list, slice, layer));
  }
  all.norm = list.add("model.norm.weight", ParameterKind::norm, {sizes.width});
  all.head = sizes.ties_embeddings ? all.embed
                                   : list.add("lm_head.weight", ParameterKind::matrix,
                                              {sizes.vocab, sizes.width}, slice.vocab.rows());
  all.specs = list.take();
  return all;
}

std::unique_ptr<Model> make_llama(const LlamaSizes& sizes, std::int64_t seq_len,
                                  const TensorCoordinate& place, config::Kernels kernels) {
  const LlamaSlice slice = slice_of(sizes, place);
  LlamaParameters parameters = parameters_of(slice);
  auto model = std::make_unique<Model>();
  model->width = sizes.width;
  model->table_values = seq_len * sizes.head_dim;  // cosines and sines
  model->kernels = describe_kernels(kernels);
  const RowOperations& rows = row_operations(kernels);
  const auto rotary = std::make_shared<RotaryTables>(sizes.rope, sizes.head_dim);
  model->blocks.push_back(std::make_unique<LlamaEmbedding>(slice, parameters.embed));
  model->costs.push_back({});
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    model->blocks.push_back(std::make_unique<LlamaLayer>(
        slice, layer, parameters.layers[static_cast<std::size_t>(layer)], rotary, rows));
    model->costs.push_back(layer_cost(slice, seq_len));
  }
  model->blocks.push_back(
      std::make_unique<LlamaHead>(slice, parameters.norm, parameters.head, rows));
  model->costs.push_back({.forward_flops_per_token = 2 * static_cast<double>(sizes.width) *
                                                     static_cast<double>(sizes.vocab)});
  model->unused_tensors = unused_tensors_of(sizes.layers);
  if (sizes.ties_embeddings) {
    model->aliases = {{.name = "lm_head.weight", .parameter = "model.embed_tokens.weight"}};
  }
  model->parameters = std::move(parameters.specs);
  return model;
}

const Family& family() {
  static const LlamaFamily kFamily;
  return kFamily;
}

}  // namespace dtrain::model::llama
