#include "dtrain/config/bdh/settings.h"

#include "dtrain/base/error.h"
#include "dtrain/config/family.h"
#include "dtrain/config/schema/rows.h"

namespace dtrain::config::bdh {
namespace {

using namespace rows;

constexpr double kMaxHeads = 1 << 12;
constexpr double kMaxNeurons = 1 << 20;

constexpr Setting kSettings[] = {
    {"model.heads", "--heads", "NH", "", "heads", kTrain, kOwn<&Settings::heads>,
     between(1, kMaxHeads), kFixed},
    {"model.neurons", "--neurons", "N", "", "neurons per head, an even number", kTrain,
     kOwn<&Settings::neurons>, between(2, kMaxNeurons), kFixed},
    {"import.heads", "--heads", "NH", "", "the same for heads, in files with dtrain's own shapes",
     kImport, kOwn<&Settings::told_heads>, between(0, kMaxHeads)},
};

constexpr ForeignNames kForeignNames[] = {
    {"n-head n-heads num-heads num-attention-heads", "model.heads"},
    {"ffn-hidden-size intermediate-size d-ff", "model.neurons", "per head"},
};

void check(const ModelConfig& model) {
  const std::int64_t neurons = model.own.of<Settings>().neurons;
  if (neurons % 2 == 0) return;
  base::fail(base::ErrorKind::usage,
             "--neurons {} is odd: neurons are rotated in pairs, so it must be even; use {} or {}",
             neurons, neurons - 1, neurons + 1);
}

}  // namespace

// Forward and backward, full attention takes 3·T FLOPs for each neuron of a position. A chunk C
// takes 3·C of its own, and 14·D for the state: its reading and writing, and five products back.
std::int64_t cheapest_chunk(std::int64_t width, std::int64_t seq_len) {
  constexpr std::int64_t kChunk = 128;
  return 3 * seq_len > 14 * width + 3 * kChunk ? kChunk : 0;
}

// Plain kernels compute whole squares. For each neuron of a position, in seconds:
// - the square of `reach` positions: three products of scores, 4 * reach FLOPs with the gradient of q
//   as one product, three with values, of which all neurons of a head share 6 * D * reach, and about
//   twelve passes over the scores;
// - the state of N x D numbers: 14 * D FLOPs as above, and once a chunk its traffic: forward, again
//   for the backward pass, and its gradient. Each writes, adds and reads a product, five to six
//   values, of bfloat16 30 bytes with the sum in float32.
std::int64_t fastest_chunk(std::int64_t width, std::int64_t neurons, const AttentionWork& work) {
  const DeviceRates& rates = *work.rates;
  const auto d = static_cast<double>(width);
  const auto n = static_cast<double>(neurons);
  const auto bytes = static_cast<double>(work.value_bytes);
  const double state_bytes = work.value_bytes == 2 ? 62 : 16 * bytes;
  const auto of_square = [&](double reach) {
    return reach *
           (4 / rates.products + 6 * d / n / rates.wide_products + 12 * bytes / n / rates.bytes);
  };
  const auto length = static_cast<double>(work.seq_len);
  double least = of_square(length);
  std::int64_t best = 0;
  for (std::int64_t chunk = 128; chunk < work.seq_len; chunk *= 2) {
    const auto reach = static_cast<double>(chunk);
    const double time =
        of_square(reach) + 14 * d / rates.wide_products + state_bytes * d / reach / rates.bytes;
    if (time < least) {
      least = time;
      best = chunk;
    }
  }
  return best;
}

const Family& family() {
  static constexpr Family kFamily{
      .name = "bdh",
      .settings = kSettings,
      .foreign_names = kForeignNames,
      .defaults = [] { return std::any(Settings()); },
      .check = check,
      .has_fused_kernels = true,
      .attention =
          [](const ModelConfig& model, const AttentionWork& work) {
            return work.rates == nullptr
                       ? cheapest_chunk(model.width, work.seq_len)
                       : fastest_chunk(model.width, model.own.of<Settings>().neurons, work);
          }};
  return kFamily;
}

}  // namespace dtrain::config::bdh
