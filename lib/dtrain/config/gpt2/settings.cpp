#include "dtrain/config/gpt2/settings.h"

#include "dtrain/base/error.h"
#include "dtrain/config/family.h"
#include "dtrain/config/gpt2/hugging_face.h"
#include "dtrain/config/schema/rows.h"

namespace dtrain::config::gpt2 {
namespace {

using namespace rows;

constexpr double kMaxInner = 1 << 20;
constexpr double kMaxLearnedPositions = 1 << 24;

constexpr Setting kSettings[] = {
    {"model.inner_size", "--inner-size", "N", "", "size of the MLP; 0: 4 times --width", kTrain,
     kFamilyField<&Settings::inner>, between(0, kMaxInner), kFixed},
    {"model.learned_positions", "--learned-positions", "N", "positions",
     "rows of the embedding of positions: the longest sequence", kTrain,
     kFamilyField<&Settings::positions>, between(1, kMaxLearnedPositions), kFixed},
    {"model.layer_norm_eps", "--layer-norm-eps", "X", "", "epsilon of LayerNorm", kTrain,
     kFamilyField<&Settings::norm_epsilon>, above(0, 1), kFixed},
    {"model.biases", "--biases", "on|off", "", "biases of linear maps and LayerNorms", kTrain,
     kFamilyField<&Settings::biases>, kFixed},
    {"model.tie_head", "--tie-head", "on|off", "",
     "the output layer uses the matrix of the embedding of tokens", kTrain,
     kFamilyField<&Settings::tie_head>, kFixed},
    {"model.weight_std", "--weight-std", "X", "",
     "standard deviation of the initial embeddings and matrices; 1/sqrt(2 --layers) of it for the "
     "last matrix of attention and MLP",
     kTrain, kFamilyField<&Settings::init_stddev>, between(0, 10), kFixed},
};

constexpr ForeignFlags kForeignFlags[] = {
    {"bias disable-bias-linear add-bias-linear", "model.biases"},
    {"layernorm-epsilon layer-norm-epsilon", "model.layer_norm_eps"},
    {"n-inner", "model.inner_size"},
    {"n-positions", "model.learned_positions"},
};

void check_heads(const ModelConfig& model) {
  if (model.width % model.heads == 0) return;
  base::fail(base::ErrorKind::usage, "--heads {} does not divide --width {}: change one of them",
             model.heads, model.width);
}

std::int64_t gpt2_parameters(const ModelConfig& model) {
  const Settings& own = settings_of(model);
  const std::int64_t width = model.width;
  const std::int64_t inner = inner_size_of(model);
  const std::int64_t norm = own.biases ? 2 * width : width;
  std::int64_t layer = 2 * norm + 4 * width * width + 2 * width * inner;
  if (own.biases) layer += 5 * width + inner;
  const std::int64_t embeddings = (own.tie_head ? 1 : 2) * model.vocab + own.positions;
  return embeddings * width + model.layers * layer + norm;
}

double gpt2_flops(const Config& config) {
  const ModelConfig& model = config.model;
  const double layer = layer_flops(model.width, inner_size_of(model), config.data.seq_len);
  const double head = 2 * static_cast<double>(model.width) * static_cast<double>(model.vocab);
  return 3 * (static_cast<double>(model.layers) * layer + head);
}

void resolve_gpt2_sizes(ModelConfig& model) { settings_of(model).inner = inner_size_of(model); }

constexpr Sizing kSizing{.parameters = gpt2_parameters,
                         .training_flops = gpt2_flops,
                         .width_step = [](const ModelConfig& model) { return model.heads; },
                         .tuned_key = "model.inner_size",
                         .tuned_step = 1,
                         .usual_value = [](const ModelConfig& model) { return 4 * model.width; }};

}  // namespace

std::int64_t inner_size_of(const ModelConfig& model) {
  const std::int64_t given = settings_of(model).inner;
  return given > 0 ? given : 4 * model.width;
}

double layer_flops(std::int64_t width, std::int64_t inner, std::int64_t seq_len) {
  const auto size = static_cast<double>(width);
  // Four projections, the causal half of the scores and of their product with the values, and the
  // MLP.
  return 8 * size * size + 2 * size * static_cast<double>(seq_len) +
         4 * size * static_cast<double>(inner);
}

const Family& family() {
  static const Family kFamily{.name = "gpt2",
                              .settings = kSettings,
                              .foreign_flags = kForeignFlags,
                              .defaults = [] { return std::any(Settings()); },
                              .check = check_heads,
                              .hugging_face = hugging_face(),
                              .sizing = kSizing,
                              .fused_kernels = FusedKernels::rows,
                              .resolve_sizes = resolve_gpt2_sizes};
  return kFamily;
}

}  // namespace dtrain::config::gpt2
