#include "dtrain/model/bdh/bdh.h"

#include <fmt/format.h>

#include "dtrain/base/error.h"
#include "dtrain/config/bdh/settings.h"
#include "dtrain/model/bdh/internal/bdh_blocks.h"
#include "dtrain/model/bdh/internal/bdh_partition.h"
#include "dtrain/model/bdh/internal/bdh_recurrent.h"
#include "dtrain/model/bdh/internal/fused/fused_head.h"
#include "dtrain/model/bdh/internal/fused/fused_level.h"
#include "dtrain/model/bdh/internal/rope.h"
#include "dtrain/model/family.h"

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

// Restricts a whole parameter's spec to `count` rows or columns from `begin` on.
ParameterSpec sliced(ParameterSpec spec, std::int64_t dim, std::int64_t begin, std::int64_t count) {
  std::int64_t& held = spec.shape[static_cast<std::size_t>(dim)];
  if (held == count) return spec;
  spec.cut = param::TensorCut{.dim = dim, .begin = begin, .whole = held};
  held = count;
  return spec;
}

// Neuron-major storage: each neuron's weights are one row, so heads, tensor-parallel slices and
// shards are row ranges.
ParameterSpec neuron_spec(std::string name, const BdhSlice& slice) {
  return sliced(plain_spec(std::move(name), slice.whole.all_neurons(), slice.whole.width), 0,
                slice.first_neuron, slice.all_neurons());
}

ParameterSpec encoder_spec(std::string name, const BdhSlice& slice) {
  ParameterSpec spec = neuron_spec(std::move(name), slice);
  spec.export_view = {slice.whole.heads, slice.whole.neurons, slice.whole.width};
  spec.export_order = {0, 2, 1};
  return spec;
}

param::ParameterSpecs parameter_specs(const BdhSlice& slice) {
  const BdhSizes& sizes = slice.whole;
  ParameterSpec embed = plain_spec("embed.weight", sizes.vocab, sizes.width);
  embed.kind = param::ParameterKind::embedding;
  param::ParameterSpecs specs{sliced(std::move(embed), 0, slice.first_token, slice.vocab)};
  const std::int64_t distinct = sizes.tie_layers ? 1 : sizes.layers;
  for (std::int64_t level = 0; level < distinct; ++level) {
    const std::string prefix = sizes.tie_layers ? "" : fmt::format("levels.{}.", level);
    specs.push_back(encoder_spec(prefix + "encoder", slice));
    specs.push_back(encoder_spec(prefix + "encoder_v", slice));
    specs.push_back(neuron_spec(prefix + "decoder", slice));
  }
  specs.push_back(
      sliced(plain_spec("lm_head", sizes.width, sizes.vocab), 1, slice.first_token, slice.vocab));
  return specs;
}

// span: the result of attention_span for sequences of seq_len.
BlockCost level_cost(const BdhSlice& slice, std::int64_t seq_len, std::int64_t span,
                     bool recomputes_gates) {
  const BdhSizes& sizes = slice.whole;
  const auto n = static_cast<double>(sizes.all_neurons());
  const auto width = static_cast<double>(sizes.width);
  const double flops = config::bdh::layer_flops(
      {.width = sizes.width, .heads = sizes.heads, .neurons = sizes.all_neurons()}, seq_len, span);
  const double gates = recomputes_gates ? 4 * width * n : 0;  // xs and ys

  // Ranks all-reduce the decoder's output and the gradient of x. Ranks that share a head also
  // all-reduce, per head, the attention output and its gradient.
  const double shared = slice.ranks_per_head > 1 ? 2 * static_cast<double>(slice.heads) * width : 0;
  return {.forward_flops_per_token = flops,
          .recomputed_flops_per_token = gates,
          .reduced_values_per_token = slice.place.is_whole() ? 0 : 2 * width + shared};
}

base::IndexedVector<BlockId, BlockCost> block_costs(const BdhSlice& slice, std::int64_t seq_len,
                                                    std::int64_t span, bool recomputes_gates) {
  const BdhSizes& sizes = slice.whole;
  const auto width = static_cast<double>(sizes.width);
  const auto vocab = static_cast<double>(sizes.vocab);
  base::IndexedVector<BlockId, BlockCost> costs{{}};
  for (std::int64_t level = 0; level < sizes.layers; ++level) {
    costs.push_back(level_cost(slice, seq_len, span, recomputes_gates));
  }
  costs.push_back({.forward_flops_per_token = 2 * width * vocab});
  return costs;
}

// Returns the chunk size of attention for sequences of `length`; 0 for full attention.
std::int64_t attention_span(const ComputeOptions& computation, std::int64_t length,
                            std::int64_t width) {
  using Kind = config::AttentionSetting::Kind;
  const config::AttentionSetting& attention = computation.attention;
  if (attention.kind == Kind::full) return 0;
  const bool is_given = attention.kind == Kind::chunked;
  if (!is_given && computation.kernels == config::Kernels::plain) return 0;
  const std::int64_t chunk =
      is_given ? attention.chunk : config::bdh::cheapest_chunk(width, length);
  return chunk < length ? chunk : 0;
}

std::string describe_kernels(const ComputeOptions& computation, std::int64_t span) {
  const bool is_plain = computation.kernels == config::Kernels::plain;
  const std::string_view kernels = is_plain ? "plain" : "fused";
  if (span > 0) return fmt::format("{}, attention in chunks of {} positions", kernels, span);
  return is_plain ? "plain" : "fused, full attention";
}

}  // namespace

BdhSizes sizes_of(const config::ModelConfig& config) {
  const config::bdh::Settings& own = config::bdh::settings_of(config);
  return {.layers = config.layers,
          .width = config.width,
          .heads = config.heads,
          .neurons = own.neurons,
          .vocab = config.vocab,
          .dropout = config.dropout,
          .tie_layers = own.tie_layers};
}

BdhParameters parameter_ids(const BdhSizes& sizes) {
  BdhParameters ids;
  for (std::int64_t level = 0; level < sizes.layers; ++level) {
    const ParameterId first(1 + (sizes.tie_layers ? 0 : 3 * level));
    ids.layers.push_back({first, first + 1, first + 2});
  }
  ids.lm_head = ParameterId(1 + 3 * (sizes.tie_layers ? 1 : sizes.layers));
  return ids;
}

std::unique_ptr<Model> make_bdh(const BdhSizes& sizes, std::int64_t seq_len,
                                const TensorCoordinate& place, const ComputeOptions& computation) {
  const BdhSlice slice = slice_of(sizes, place);
  auto model = std::make_unique<Model>();
  model->parameters = parameter_specs(slice);
  model->table_values = seq_len * slice.neurons;  // of RoPE
  model->width = sizes.width;
  model->buffers.push_back({"attn.freqs", rope_frequencies(sizes.neurons).view({1, 1, 1, -1})});
  model->unused_tensors.push_back("lm_gate");  // (D, 1), in early versions of the reference

  const BdhParameters ids = parameter_ids(sizes);
  const auto rope = std::make_shared<RopeTables>(slice.head_slice());
  const bool is_fused = computation.kernels == config::Kernels::fused;
  const std::int64_t span = attention_span(computation, seq_len, sizes.width);
  model->widens_tables = is_fused;
  model->costs = block_costs(slice, seq_len, span, computation.recomputes_gates);
  model->kernels = describe_kernels(computation, span);
  model->blocks.push_back(std::make_unique<BdhEmbedding>(slice, ids.embed));
  for (std::int64_t level = 0; level < sizes.layers; ++level) {
    const LevelParameters& own = ids.layers[static_cast<std::size_t>(level)];
    if (is_fused) {
      model->blocks.push_back(std::make_unique<FusedLevel>(
          slice, level, own, rope,
          FusedLevel::Options{.span = span,
                              .recomputes_gates = computation.recomputes_gates,
                              .threads = computation.threads}));
    } else {
      model->blocks.push_back(std::make_unique<BdhLevel>(slice, level, own, rope, span));
    }
  }
  if (is_fused && !slice.splits_vocab()) {
    model->blocks.push_back(std::make_unique<FusedHead>(slice, ids.lm_head, computation.threads));
  } else {
    model->blocks.push_back(std::make_unique<BdhHead>(slice, ids.lm_head));
  }
  return model;
}

namespace {

using config::ModelConfig;
using config::bdh::Settings;

// Returns the number of levels with their own matrices; 0 if all levels share one set.
std::int64_t count_untied_levels(const TensorShapes& tensors) {
  std::int64_t levels = 0;
  while (tensors.has(fmt::format("levels.{}.encoder", levels))) ++levels;
  return levels;
}

// Returns the neurons per head of a file in storage form, whose shapes do not specify the heads.
std::int64_t neurons_per_head(const TensorShapes& tensors, const std::string& encoder,
                              std::int64_t heads) {
  const std::int64_t all_neurons = tensors.size(encoder, 2, 0);
  if (heads == 0) tensors.fail_unspecified("heads", "--heads NH");
  if (all_neurons % heads != 0) {
    base::fail(base::ErrorKind::usage,
               "--heads {}: '{}{}' of '{}' has {} neurons, which is not a multiple of it", heads,
               tensors.prefix, encoder, tensors.path, all_neurons);
  }
  return all_neurons / heads;
}

class BdhFamily final : public Family {
 public:
  std::unique_ptr<Model> make(const ModelConfig& config, std::int64_t seq_len,
                              const TensorCoordinate& place,
                              const ComputeOptions& computation) const override {
    return make_bdh(sizes_of(config), seq_len, place, computation);
  }

  std::vector<mesh::Subgroup> tensor_subgroups(const ModelConfig& config,
                                               std::int64_t tp) const override {
    return bdh::tensor_subgroups(sizes_of(config), tp);
  }

  bool recognises(const TensorShapes& tensors) const override {
    return tensors.has("encoder") || tensors.has("levels.0.encoder");
  }

  // Shapes determine all sizes except the number of tied levels and, in storage form, of heads.
  ModelConfig read_sizes(const TensorShapes& tensors, const UserHints& hints) const override {
    const std::int64_t untied = count_untied_levels(tensors);
    const std::string encoder = untied > 0 ? "levels.0.encoder" : "encoder";
    const std::int64_t heads =
        tensors.is_storage ? hints.own.get<Settings>().import_heads : tensors.size(encoder, 3, 0);
    const std::int64_t neurons = tensors.is_storage ? neurons_per_head(tensors, encoder, heads)
                                                    : tensors.size(encoder, 3, 2);
    return {.layers = untied > 0 ? untied : hints.layers,
            .width = tensors.size("embed.weight", 2, 1),
            .heads = heads,
            .family = Settings{.neurons = neurons, .tie_layers = untied == 0},
            .vocab = tensors.size("embed.weight", 2, 0)};
  }

  void check_own(const ModelConfig& found, const UserHints& hints,
                 std::string_view path) const override {
    check_flag_agrees(path, "--heads", hints.own.get<Settings>().import_heads, found.heads);
  }

  std::vector<ReportedValue> reported_values(const ModelConfig& config, std::int64_t rows,
                                             std::int64_t length) const override {
    const std::vector<std::int64_t> stream{rows, length, config.width};
    std::vector<ReportedValue> values{{"act.embed", stream}};
    for (std::int64_t level = 0; level < config.layers; ++level) {
      const std::string prefix = fmt::format("act.layer{}", level);
      values.push_back({prefix + ".out", stream});
      values.push_back({prefix + ".ykv", {rows, config.heads, length, config.width}, level == 0});
      values.push_back({prefix + ".ymlp", stream, level == 0});
    }
    return values;
  }

  std::int64_t max_positions(const ModelConfig& /*config*/) const override {
    return config::bdh::kMaxPositions;
  }

  // The states of all levels in BdhRecurrent, in at least float32.
  std::int64_t generator_bytes(const ModelConfig& config, at::ScalarType dtype,
                               std::int64_t /*positions*/) const override {
    const BdhSizes sizes = sizes_of(config);
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    return param::bytes_of(config.layers * sizes.all_neurons() * sizes.width, wide);
  }

  std::unique_ptr<Generator> make_generator(const ModelConfig& config,
                                            const param::Arena& weights) const override {
    return std::make_unique<BdhRecurrent>(sizes_of(config), weights);
  }
};

}  // namespace

const Family& family() {
  static const BdhFamily kFamily;
  return kFamily;
}

}  // namespace dtrain::model::bdh
