#include "dtrain/config/bdh/settings.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/config/bdh/hugging_face.h"
#include "dtrain/config/family.h"
#include "dtrain/config/schema/rows.h"

namespace dtrain::config::bdh {
namespace {

using namespace rows;

constexpr double kMaxHeads = 1 << 12;
constexpr double kMaxNeurons = 1 << 20;
// Neurons of all heads per unit of width, in configs/experiments/mini.json and small.json.
constexpr std::int64_t kUsualNeurons = 32;
// Divisor of the widths that --match chooses.
constexpr std::int64_t kWidthStep = 8;

constexpr Setting kSettings[] = {
    {"model.neurons", "--neurons", "N", "", "neurons per head, an even number", kTrain,
     kFamilyField<&Settings::neurons>, between(2, kMaxNeurons), kFixed},
    {"model.tie_layers", "--tie-layers", "on|off", "",
     "all layers share one set of matrices; off gives every layer its own", kTrain,
     kFamilyField<&Settings::tie_layers>, kFixed, formerly("model.tie_levels", "--tie-levels")},
    {"import.heads", "--heads", "NH", "",
     "number of heads, for a file with dtrain's tensor shapes that does not record it; 0: read it "
     "from the file",
     kImport, kFamilyField<&Settings::import_heads>, between(0, kMaxHeads)},
};

constexpr ForeignFlags kForeignFlags[] = {
    {"ffn-hidden-size d-ff", "model.neurons",
     "neurons per head of a bdh; with --model llama, use --intermediate-size"},
};

void check(const ModelConfig& model) {
  const std::int64_t neurons = settings_of(model).neurons;
  if (neurons % 2 == 0) return;
  base::fail(base::ErrorKind::usage,
             "--neurons {} is odd, but RoPE rotates neurons in pairs: use {} or {}", neurons,
             neurons - 1, neurons + 1);
}

std::int64_t attention_chunk(const ModelConfig& model, const AttentionWorkload& work) {
  return work.rates == nullptr ? cheapest_chunk(model.width, work.seq_len)
                               : fastest_chunk(model.width, settings_of(model).neurons, work);
}

std::int64_t bdh_parameters(const ModelConfig& model) {
  const Settings& own = settings_of(model);
  const std::int64_t distinct_layers = own.tie_layers ? 1 : model.layers;
  return model.width * (2 * model.vocab + 3 * distinct_layers * model.heads * own.neurons);
}

double bdh_flops(const Config& config) {
  const ModelConfig& model = config.model;
  const AttentionSetting& attention = config.machine.attention;
  const bool is_chunked =
      attention.kind == AttentionSetting::Kind::chunked && attention.chunk < config.data.seq_len;
  const double layer = layer_flops({.width = model.width,
                                    .heads = model.heads,
                                    .neurons = model.heads * settings_of(model).neurons},
                                   config.data.seq_len, is_chunked ? attention.chunk : 0);
  const double head = 2 * static_cast<double>(model.width) * static_cast<double>(model.vocab);
  return 3 * (static_cast<double>(model.layers) * layer + head);
}

constexpr Sizing kSizing{.parameters = bdh_parameters,
                         .training_flops = bdh_flops,
                         .width_step = [](const ModelConfig&) { return kWidthStep; },
                         .tuned_key = "model.neurons",
                         .tuned_step = 2,
                         .usual_value =
                             [](const ModelConfig& model) {
                               const std::int64_t pairs =
                                   kUsualNeurons * model.width / model.heads / 2;
                               return std::max<std::int64_t>(2, 2 * pairs);
                             }};

}  // namespace

double layer_flops(const LayerSizes& sizes, std::int64_t seq_len, std::int64_t chunk) {
  const auto n = static_cast<double>(sizes.neurons);
  const auto heads = static_cast<double>(sizes.heads);
  const auto width = static_cast<double>(sizes.width);
  const auto reach = static_cast<double>(chunk == 0 ? seq_len : chunk);
  // Products with the three matrices, then the causal half of the scores and of their product with
  // x. With chunked attention, each token also reads and updates a state.
  const double state = chunk == 0 ? 0 : 4 * width * n;
  return 6 * width * n + reach * (n + width * heads) + state;
}

// Per neuron and position, forward and backward, full attention takes 3·T FLOPs. A chunk
// of C positions takes 3·C within the chunk and 14·D for the state: reading and writing it, and five
// matmuls of the backward pass.
std::int64_t cheapest_chunk(std::int64_t width, std::int64_t seq_len) {
  constexpr std::int64_t kChunk = 128;
  return 3 * seq_len > 14 * width + 3 * kChunk ? kChunk : 0;
}

// Plain kernels compute full squares of scores. Seconds per neuron and position:
// - a square of `reach` positions: three matmuls that make scores (4 * reach FLOPs; the gradient of
//   q is one matmul), three with values (6 * D * reach FLOPs, shared by all neurons of a head), and
//   about twelve passes over the scores;
// - the state of N x D numbers: 14 * D FLOPs as above, and its memory traffic once per chunk: in the
//   forward pass, again for the backward pass, and for its gradient. Each writes, adds and reads a
//   product: five to six values, or 30 bytes for bfloat16, whose sum is float32.
std::int64_t fastest_chunk(std::int64_t width, std::int64_t neurons,
                           const AttentionWorkload& work) {
  const DeviceRates& rates = *work.rates;
  const auto d = static_cast<double>(width);
  const auto n = static_cast<double>(neurons);
  const auto bytes = static_cast<double>(work.value_bytes);
  const double state_bytes = work.value_bytes == 2 ? 62 : 16 * bytes;
  const auto square_seconds = [&](double reach) {
    return reach * (4 / rates.matmul_flops + 6 * d / n / rates.wide_matmul_flops +
                    12 * bytes / n / rates.memory_bandwidth);
  };
  const auto length = static_cast<double>(work.seq_len);
  double shortest = square_seconds(length);
  std::int64_t best = 0;
  for (std::int64_t chunk = 128; chunk < work.seq_len; chunk *= 2) {
    const auto reach = static_cast<double>(chunk);
    const double time = square_seconds(reach) + 14 * d / rates.wide_matmul_flops +
                        state_bytes * d / reach / rates.memory_bandwidth;
    if (time < shortest) {
      shortest = time;
      best = chunk;
    }
  }
  return best;
}

const Family& family() {
  static const Family kFamily{.name = "bdh",
                              .settings = kSettings,
                              .foreign_flags = kForeignFlags,
                              .defaults = [] { return std::any(Settings()); },
                              .check = check,
                              .hugging_face = hugging_face(),
                              .sizing = kSizing,
                              .fused_kernels = FusedKernels::layers,
                              .attention_chunk = attention_chunk};
  return kFamily;
}

}  // namespace dtrain::config::bdh
