#include "dtrain/config/llama/settings.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/config/family.h"
#include "dtrain/config/llama/hugging_face.h"
#include "dtrain/config/schema/rows.h"

namespace dtrain::config::llama {
namespace {

using namespace rows;

constexpr double kMaxHeads = 1 << 12;
constexpr double kMaxHeadDim = 1 << 14;
constexpr double kMaxIntermediate = 1 << 20;
constexpr double kMaxPositions = 1 << 24;
// Divisor of the widths that --match chooses if --head-dim is given.
constexpr std::int64_t kWidthStep = 8;

// The accessor of a member of the settings of RoPE.
template <auto member>
constexpr Field kRopeField = field_of([](auto& config) -> auto& {
  return settings_of(config.model).rope.*member;
});

constexpr Setting kSettings[] = {
    {"model.kv_heads", "--kv-heads", "N", "",
     "heads of keys and values, which divide --heads; 0: as many as --heads", kTrain,
     kFamilyField<&Settings::kv_heads>, between(0, kMaxHeads), kFixed},
    {"model.head_dim", "--head-dim", "N", "", "size of a head, even; 0: --width / --heads", kTrain,
     kFamilyField<&Settings::head_dim>, between(0, kMaxHeadDim), kFixed},
    {"model.intermediate_size", "--intermediate-size", "N", "",
     "size of the MLP; 0: 8/3 of --width, rounded up to a multiple of 64", kTrain,
     kFamilyField<&Settings::intermediate>, between(0, kMaxIntermediate), kFixed},
    {"model.norm_eps", "--norm-eps", "X", "", "epsilon of RMSNorm", kTrain,
     kFamilyField<&Settings::norm_epsilon>, above(0, 1), kFixed},
    {"model.rope_theta", "--rope-theta", "X", "", "base of RoPE's frequencies", kTrain,
     kRopeField<&RopeSettings::theta>, above(0, 1e12), kFixed},
    {"model.rope_scaling", "--rope-scaling", "NAME", "",
     "scaling of RoPE's frequencies for longer contexts", kTrain,
     kRopeField<&RopeSettings::scaling>, one_of(kRopeScalings), kFixed},
    {"model.rope_factor", "--rope-factor", "X", "",
     "linear and llama3 scaling: how many times longer the context becomes", kTrain,
     kRopeField<&RopeSettings::factor>, above(0, 1e6), kFixed},
    {"model.rope_low_frequency", "--rope-low-frequency", "X", "",
     "llama3 scaling: frequencies with wavelengths above --rope-original-positions / X are divided "
     "by --rope-factor",
     kTrain, kRopeField<&RopeSettings::low_frequency>, above(0, 1e6), kFixed},
    {"model.rope_high_frequency", "--rope-high-frequency", "X", "",
     "llama3 scaling: frequencies with wavelengths below --rope-original-positions / X keep their "
     "values",
     kTrain, kRopeField<&RopeSettings::high_frequency>, above(0, 1e6), kFixed},
    {"model.rope_original_positions", "--rope-original-positions", "N", "positions",
     "llama3 scaling: context length of pretraining", kTrain, kRopeField<&RopeSettings::original>,
     between(1, kMaxPositions), kFixed},
    {"model.attention_bias", "--attention-bias", "NAME", "",
     "linear maps of attention with a bias: none, those of queries, keys and values, or also the "
     "output's",
     kTrain, kFamilyField<&Settings::attention_bias>, one_of(kAttentionBiases), kFixed},
    {"model.qk_norm", "--qk-norm", "on|off", "", "RMSNorm over each head's query and key", kTrain,
     kFamilyField<&Settings::query_key_norm>, kFixed},
    {"model.tie_embeddings", "--tie-embeddings", "on|off", "",
     "the output layer uses the matrix of the embedding", kTrain,
     kFamilyField<&Settings::tie_embeddings>, kFixed},
    {"model.init_std", "--init-std", "X", "",
     "standard deviation of the initial embeddings and matrices", kTrain,
     kFamilyField<&Settings::init_stddev>, between(0, 10), kFixed},
    {"model.max_positions", "--max-positions", "N", "positions",
     "longest sequence, in exported files and for generation", kTrain,
     kFamilyField<&Settings::max_positions>, between(1, kMaxPositions), kFixed},
};

constexpr ForeignFlags kForeignFlags[] = {
    {"n-kv-heads num-key-value-heads num-query-groups", "model.kv_heads"},
    {"kv-channels", "model.head_dim"},
    {"norm-epsilon rms-norm-eps", "model.norm_eps"},
    {"rotary-base", "model.rope_theta"},
    {"qk-layernorm", "model.qk_norm"},
    {"init-method-std initializer-range", "model.init_std"},
    {"untie-embeddings-and-output-weights tie-word-embeddings weight-tying",
     "model.tie_embeddings"},
};

void check_sizes(const ModelConfig& model) {
  const Settings& own = settings_of(model);
  if (own.kv_heads > 0 && model.heads % own.kv_heads != 0) {
    base::fail(base::ErrorKind::usage,
               "--kv-heads {} does not divide --heads {}: every key serves equally many queries",
               own.kv_heads, model.heads);
  }
  if (own.head_dim == 0 && model.width % model.heads != 0) {
    base::fail(base::ErrorKind::usage,
               "--heads {} does not divide --width {}: change one of them, or give --head-dim",
               model.heads, model.width);
  }
  if (head_dim_of(model) % 2 != 0) {
    base::fail(base::ErrorKind::usage,
               "a head's size of {} is odd, but RoPE rotates pairs: change --head-dim, --width or "
               "--heads",
               head_dim_of(model));
  }
  const RopeSettings& rope = own.rope;
  if (rope.scaling == RopeScaling::llama3 && rope.high_frequency <= rope.low_frequency) {
    base::fail(base::ErrorKind::usage,
               "--rope-high-frequency {} must be above --rope-low-frequency {}",
               rope.high_frequency, rope.low_frequency);
  }
}

LayerSizes layer_sizes(const ModelConfig& model) {
  return {.width = model.width,
          .queries = model.heads * head_dim_of(model),
          .keys = kv_heads_of(model) * head_dim_of(model),
          .intermediate = intermediate_of(model)};
}

std::int64_t llama_parameters(const ModelConfig& model) {
  const Settings& own = settings_of(model);
  const auto [width, queries, keys, intermediate] = layer_sizes(model);
  std::int64_t layer = 2 * width * (queries + keys) + 3 * width * intermediate + 2 * width;
  if (own.attention_bias != AttentionBias::none) layer += queries + 2 * keys;
  if (own.attention_bias == AttentionBias::all) layer += width;
  if (own.query_key_norm) layer += 2 * head_dim_of(model);
  const std::int64_t embeddings = own.tie_embeddings ? 1 : 2;
  return embeddings * model.vocab * width + model.layers * layer + width;
}

double llama_flops(const Config& config) {
  const ModelConfig& model = config.model;
  const double layer = layer_flops(layer_sizes(model), config.data.seq_len);
  const double head = 2 * static_cast<double>(model.width) * static_cast<double>(model.vocab);
  return 3 * (static_cast<double>(model.layers) * layer + head);
}

// RoPE needs heads of even size.
std::int64_t width_step(const ModelConfig& model) {
  return settings_of(model).head_dim > 0 ? kWidthStep : 2 * model.heads;
}

void resolve_llama_sizes(ModelConfig& model) {
  Settings& own = settings_of(model);
  own.kv_heads = kv_heads_of(model);
  own.head_dim = head_dim_of(model);
  own.intermediate = intermediate_of(model);
}

constexpr Sizing kSizing{.parameters = llama_parameters,
                         .training_flops = llama_flops,
                         .width_step = width_step,
                         .tuned_key = "model.intermediate_size",
                         .tuned_step = 1,
                         .usual_value = [](const ModelConfig& model) {
                           return std::max<std::int64_t>(1, model.width * 8 / 3);
                         }};

}  // namespace

std::int64_t kv_heads_of(const ModelConfig& model) {
  const std::int64_t given = settings_of(model).kv_heads;
  return given > 0 ? given : model.heads;
}

std::int64_t head_dim_of(const ModelConfig& model) {
  const std::int64_t given = settings_of(model).head_dim;
  return given > 0 ? given : model.width / model.heads;
}

std::int64_t intermediate_of(const ModelConfig& model) {
  const std::int64_t given = settings_of(model).intermediate;
  return given > 0 ? given : (model.width * 8 / 3 + 63) / 64 * 64;
}

double layer_flops(const LayerSizes& sizes, std::int64_t seq_len) {
  const auto width = static_cast<double>(sizes.width);
  const auto queries = static_cast<double>(sizes.queries);
  const auto keys = static_cast<double>(sizes.keys);
  const auto hidden = static_cast<double>(sizes.intermediate);
  // Projections, the causal half of the scores and of their product with the values, and the MLP.
  return 4 * width * (queries + keys) + 2 * queries * static_cast<double>(seq_len) +
         6 * width * hidden;
}

const Family& family() {
  static const Family kFamily{
      .name = "llama",
      .settings = kSettings,
      .foreign_flags = kForeignFlags,
      .defaults = [] { return std::any(Settings()); },
      .check = check_sizes,
      .hugging_face = hugging_face(),
      .sizing = kSizing,
      .fused_kernels = FusedKernels::rows,
      .resolve_sizes = resolve_llama_sizes,
      .max_positions = [](const ModelConfig& model) { return settings_of(model).max_positions; }};
  return kFamily;
}

}  // namespace dtrain::config::llama
