#include "dtrain/model/gpt2/gpt2.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/config/gpt2/settings.h"
#include "dtrain/model/family.h"
#include "dtrain/model/gpt2/internal/gpt2_blocks.h"
#include "dtrain/model/gpt2/internal/gpt2_generator.h"
#include "dtrain/model/transformer/operations.h"

namespace dtrain::model::gpt2 {
namespace {

using config::ModelConfig;
using param::ParameterId;
using param::ParameterKind;

constexpr std::int64_t kMaps = 3;  // query, key, value

// Adds the parameters of a model in turn.
class Parameters {
 public:
  explicit Parameters(const Gpt2Slice& slice) : slice_(slice), list_(slice.whole.init_stddev) {}

  Gpt2Parameters all();

 private:
  LayerParameters layer(std::int64_t index);
  WeightAndBias norm(const std::string& name);
  WeightAndBias packed_map(const std::string& name);
  WeightAndBias column_map(const std::string& name, const HeldRange& held);
  WeightAndBias row_map(const std::string& name, std::int64_t inputs, const HeldRange& held);

  [[nodiscard]] std::int64_t width() const { return slice_.whole.width; }

  Gpt2Slice slice_;
  ParameterList list_;
};

WeightAndBias Parameters::norm(const std::string& name) {
  WeightAndBias ids{list_.add(name + ".weight", ParameterKind::norm, {width()})};
  if (slice_.whole.has_biases) ids.bias = list_.add(name + ".bias", ParameterKind::bias, {width()});
  return ids;
}

// Storage holds the three maps of a head together, so that a rank holds whole heads. In files the
// heads of one map are side by side, and the three maps too.
WeightAndBias Parameters::packed_map(const std::string& name) {
  const std::int64_t heads = slice_.whole.heads;
  const std::int64_t d = slice_.whole.head_dim();
  const std::int64_t rows = slice_.heads * kMaps * d;
  const HeldRange held{0, slice_.place.index * rows, rows};
  WeightAndBias ids{
      list_.add(name + ".weight", ParameterKind::matrix, {kMaps * width(), width()}, held)};
  param::ParameterSpec& weight = list_[ids.weight];
  weight.export_view = {heads, kMaps, d, width()};
  weight.export_order = {3, 1, 0, 2};
  weight.joined_dims = 3;
  if (!slice_.whole.has_biases) return ids;
  ids.bias = list_.add(name + ".bias", ParameterKind::bias, {kMaps * width()}, held);
  param::ParameterSpec& bias = list_[*ids.bias];
  bias.export_view = {heads, kMaps, d};
  bias.export_order = {1, 0, 2};
  bias.joined_dims = 3;
  return ids;
}

// A map whose outputs are split over ranks.
WeightAndBias Parameters::column_map(const std::string& name, const HeldRange& held) {
  const std::int64_t outputs = slice_.whole.inner;
  WeightAndBias ids{list_.add(name + ".weight", ParameterKind::matrix, {outputs, width()}, held)};
  list_[ids.weight].export_order = {1, 0};
  if (slice_.whole.has_biases) {
    ids.bias = list_.add(name + ".bias", ParameterKind::bias, {outputs}, held);
  }
  return ids;
}

// A map to the residual stream, whose inputs are split over ranks.
WeightAndBias Parameters::row_map(const std::string& name, std::int64_t inputs,
                                  const HeldRange& held) {
  WeightAndBias ids{list_.add(name + ".weight", ParameterKind::matrix, {inputs, width()}, held)};
  // Two maps per layer add to the stream, whose variance so does not depend on the depth.
  list_[ids.weight].init_stddev /= std::sqrt(2.0 * static_cast<double>(slice_.whole.layers));
  if (slice_.whole.has_biases) ids.bias = list_.add(name + ".bias", ParameterKind::bias, {width()});
  return ids;
}

LayerParameters Parameters::layer(std::int64_t index) {
  const std::string prefix = fmt::format("transformer.h.{}.", index);
  const std::int64_t queries = slice_.heads * slice_.whole.head_dim();
  const HeldRange held_queries{0, slice_.place.index * queries, queries};
  const HeldRange held_inner{0, slice_.first_inner, slice_.inner};
  LayerParameters ids{};
  ids.attention_norm = norm(prefix + "ln_1");
  ids.packed = packed_map(prefix + "attn.c_attn");
  ids.output = row_map(prefix + "attn.c_proj", width(), held_queries);
  ids.mlp_norm = norm(prefix + "ln_2");
  ids.up = column_map(prefix + "mlp.c_fc", held_inner);
  ids.down = row_map(prefix + "mlp.c_proj", slice_.whole.inner, held_inner);
  return ids;
}

Gpt2Parameters Parameters::all() {
  const Gpt2Sizes& sizes = slice_.whole;
  Gpt2Parameters all;
  all.tokens = list_.add("transformer.wte.weight", ParameterKind::embedding,
                         {sizes.vocab, sizes.width}, slice_.vocab.rows());
  all.positions =
      list_.add("transformer.wpe.weight", ParameterKind::embedding, {sizes.positions, sizes.width});
  for (std::int64_t index = 0; index < sizes.layers; ++index) all.layers.push_back(layer(index));
  all.norm = norm("transformer.ln_f");
  all.head = sizes.ties_head ? all.tokens
                             : list_.add("lm_head.weight", ParameterKind::matrix,
                                         {sizes.vocab, sizes.width}, slice_.vocab.rows());
  all.specs = list_.take();
  return all;
}

BlockCost cost_of_layer(const Gpt2Slice& slice, std::int64_t seq_len) {
  const auto width = static_cast<double>(slice.whole.width);
  const double flops = config::gpt2::layer_flops(slice.whole.width, slice.whole.inner, seq_len);
  // Attention and MLP each all-reduce their output and the gradient of their input.
  return {.forward_flops_per_token = flops,
          .reduced_values_per_token = slice.place.is_whole() ? 0 : 4 * width};
}

// Older files hold the causal masks.
std::vector<std::string> causal_masks_of(std::int64_t layers) {
  std::vector<std::string> names;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (const char* name : {"bias", "masked_bias"}) {
      names.push_back(fmt::format("transformer.h.{}.attn.{}", layer, name));
    }
  }
  return names;
}

class Gpt2Family final : public Family {
 public:
  std::unique_ptr<Model> make(const ModelConfig& config, std::int64_t seq_len,
                              const TensorCoordinate& place,
                              const ComputeOptions& computation) const override {
    return make_gpt2(sizes_of(config), seq_len, place, computation.kernels);
  }

  bool recognises(const TensorShapes& tensors) const override {
    return tensors.has("transformer.wpe.weight");
  }

  // Shapes determine neither heads nor epsilon: these are the defaults. The MLP's weights are
  // (out, in) in checkpoints.
  ModelConfig read_sizes(const TensorShapes& tensors, const UserHints& /*hints*/) const override {
    ModelConfig found{.width = tensors.size("transformer.wte.weight", 2, 1),
                      .vocab = tensors.size("transformer.wte.weight", 2, 0)};
    found.layers = 0;
    while (tensors.has(fmt::format("transformer.h.{}.ln_1.weight", found.layers))) ++found.layers;
    config::gpt2::Settings& own = config::gpt2::settings_of(found);
    own.positions = tensors.size("transformer.wpe.weight", 2, 0);
    own.inner = tensors.size("transformer.h.0.mlp.c_fc.weight", 2, tensors.is_storage ? 0 : 1);
    own.biases = tensors.has("transformer.ln_f.bias");
    own.tie_head = !tensors.has("lm_head.weight");
    return found;
  }

  std::vector<ReportedValue> reported_values(const ModelConfig& config, std::int64_t rows,
                                             std::int64_t length) const override {
    return stream_values(config, rows, length);
  }

  std::int64_t max_positions(const ModelConfig& config) const override {
    return config::gpt2::settings_of(config).positions;
  }

  std::int64_t generator_bytes(const ModelConfig& config, at::ScalarType dtype,
                               std::int64_t positions) const override {
    return KeyValueCache::bytes(cache_sizes_of(sizes_of(config)), positions, dtype);
  }

  std::int64_t prompt_bytes(const ModelConfig& config, at::ScalarType dtype,
                            std::int64_t prompt) const override {
    return CachedGenerator::prompt_bytes(config, dtype, prompt);
  }

  std::unique_ptr<Generator> make_generator(const ModelConfig& config,
                                            const param::Arena& weights) const override {
    return std::make_unique<Gpt2Generator>(sizes_of(config), weights);
  }
};

}  // namespace

Gpt2Sizes sizes_of(const ModelConfig& config) {
  const config::gpt2::Settings& own = config::gpt2::settings_of(config);
  return {.layers = config.layers,
          .width = config.width,
          .heads = config.heads,
          .inner = config::gpt2::inner_size_of(config),
          .positions = own.positions,
          .vocab = config.vocab,
          .dropout = config.dropout,
          .norm_epsilon = own.norm_epsilon,
          .init_stddev = own.init_stddev,
          .has_biases = own.biases,
          .ties_head = own.tie_head};
}

Gpt2Slice slice_of(const Gpt2Sizes& sizes, const TensorCoordinate& place) {
  DTRAIN_CHECK(0 <= place.index && place.index < place.size);
  check_divides(place.size, "--heads", sizes.heads);
  const TensorPart inner = part_of(place, "--inner-size", sizes.inner);
  return {.whole = sizes,
          .place = place,
          .heads = sizes.heads / place.size,
          .inner = inner.count,
          .first_inner = inner.begin,
          .vocab = vocabulary_of(sizes.vocab, place)};
}

Gpt2Parameters parameters_of(const Gpt2Slice& slice) { return Parameters(slice).all(); }

std::unique_ptr<Model> make_gpt2(const Gpt2Sizes& sizes, std::int64_t seq_len,
                                 const TensorCoordinate& place, config::Kernels kernels) {
  if (seq_len > sizes.positions) {
    base::fail(base::ErrorKind::usage,
               "--seq-len {} exceeds the model's --learned-positions {}: use shorter sequences, or "
               "train a model with more positions",
               seq_len, sizes.positions);
  }
  const Gpt2Slice slice = slice_of(sizes, place);
  Gpt2Parameters parameters = parameters_of(slice);
  auto model = std::make_unique<Model>();
  model->width = sizes.width;
  model->kernels = describe_kernels(kernels);
  const RowOperations& rows = row_operations(kernels);
  model->blocks.push_back(
      std::make_unique<Gpt2Embedding>(slice, parameters.tokens, parameters.positions));
  model->costs.push_back({});
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    model->blocks.push_back(std::make_unique<Gpt2Layer>(
        slice, layer, parameters.layers[static_cast<std::size_t>(layer)], rows));
    model->costs.push_back(cost_of_layer(slice, seq_len));
  }
  model->blocks.push_back(
      std::make_unique<Gpt2Head>(slice, parameters.norm, parameters.head, rows));
  model->costs.push_back({.forward_flops_per_token = 2 * static_cast<double>(sizes.width) *
                                                     static_cast<double>(sizes.vocab)});
  model->unused_tensors = causal_masks_of(sizes.layers);
  if (sizes.ties_head) {
    model->aliases = {{.name = "lm_head.weight", .parameter = "transformer.wte.weight"}};
  }
  model->parameters = std::move(parameters.specs);
  return model;
}

const Family& family() {
  static const Gpt2Family kFamily;
  return kFamily;
}

}  // namespace dtrain::model::gpt2
