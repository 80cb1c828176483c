#include "dtrain/model/bdh/bdh.h"

#include <fmt/format.h>

#include "dtrain/model/bdh/bdh_blocks.h"
#include "dtrain/model/bdh/rope.h"

namespace dtrain::model::bdh {
namespace {

using param::ParameterId;
using param::ParameterSpec;

ParameterSpec plain_spec(std::string name, std::int64_t rows, std::int64_t columns) {
  return {.name = std::move(name),
          .shape = {rows, columns},
          .export_view = {rows, columns},
          .export_order = {0, 1}};
}

// Neuron-major storage: each neuron's weights are one row, so heads, tensor slices and chunks are
// row ranges.
ParameterSpec encoder_spec(std::string name, const BdhSizes& sizes) {
  return {.name = std::move(name),
          .shape = {sizes.all_neurons(), sizes.width},
          .export_view = {sizes.heads, sizes.neurons, sizes.width},
          .export_order = {0, 2, 1}};
}

std::vector<ParameterSpec> parameter_specs(const BdhSizes& sizes) {
  std::vector<ParameterSpec> specs{plain_spec("embed.weight", sizes.vocab, sizes.width)};
  const std::int64_t distinct = sizes.tie_levels ? 1 : sizes.levels;
  for (std::int64_t level = 0; level < distinct; ++level) {
    const std::string prefix = sizes.tie_levels ? "" : fmt::format("levels.{}.", level);
    specs.push_back(encoder_spec(prefix + "encoder", sizes));
    specs.push_back(encoder_spec(prefix + "encoder_v", sizes));
    specs.push_back(plain_spec(prefix + "decoder", sizes.all_neurons(), sizes.width));
  }
  specs.push_back(plain_spec("lm_head", sizes.width, sizes.vocab));
  return specs;
}

BlockCost level_cost(const BdhSizes& sizes, std::int64_t seq_len) {
  const auto n = static_cast<double>(sizes.all_neurons());
  const auto heads = static_cast<double>(sizes.heads);
  const auto width = static_cast<double>(sizes.width);
  const auto length = static_cast<double>(seq_len);
  // Products with the three matrices, then half (the causal part) of scores and of their product
  // with x.
  const double flops = 6 * width * n + length * (n + width * heads);
  return {flops};
}

std::vector<BlockCost> block_costs(const BdhSizes& sizes, std::int64_t seq_len) {
  const auto width = static_cast<double>(sizes.width);
  const auto vocab = static_cast<double>(sizes.vocab);
  std::vector<BlockCost> costs{{0}};
  costs.insert(costs.end(), static_cast<std::size_t>(sizes.levels), level_cost(sizes, seq_len));
  costs.push_back({2 * width * vocab});
  return costs;
}

}  // namespace

BdhSizes sizes_of(const config::ModelConfig& config) {
  return {.levels = config.levels,
          .width = config.width,
          .heads = config.heads,
          .neurons = config.neurons,
          .vocab = config.vocab,
          .dropout = config.dropout,
          .tie_levels = config.tie_levels};
}

BdhParameters parameter_ids(const BdhSizes& sizes) {
  BdhParameters ids;
  for (std::int64_t level = 0; level < sizes.levels; ++level) {
    const ParameterId first = 1 + (sizes.tie_levels ? 0 : 3 * level);
    ids.levels.push_back({first, first + 1, first + 2});
  }
  ids.lm_head = 1 + 3 * (sizes.tie_levels ? 1 : sizes.levels);
  return ids;
}

std::unique_ptr<Model> make_bdh(const BdhSizes& sizes, std::int64_t seq_len) {
  auto model = std::make_unique<Model>();
  model->parameters = parameter_specs(sizes);
  model->costs = block_costs(sizes, seq_len);
  model->table_values = seq_len * sizes.neurons;  // of RoPE
  model->buffers.push_back({"attn.freqs", rope_frequencies(sizes.neurons).view({1, 1, 1, -1})});

  const BdhParameters ids = parameter_ids(sizes);
  const auto rope = std::make_shared<RopeTables>(sizes.neurons);
  model->blocks.push_back(std::make_unique<BdhEmbedding>(sizes, ids.embed));
  for (std::int64_t level = 0; level < sizes.levels; ++level) {
    model->blocks.push_back(std::make_unique<BdhLevel>(
        sizes, level, ids.levels[static_cast<std::size_t>(level)], rope));
  }
  model->blocks.push_back(std::make_unique<BdhHead>(sizes, ids.lm_head));
  return model;
}

}  // namespace dtrain::model::bdh
