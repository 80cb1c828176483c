#include "dtrain/config/bdh/settings.h"

#include "dtrain/base/error.h"
#include "dtrain/config/family.h"
#include "dtrain/config/rows.h"

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

constexpr ForeignName kForeignNames[] = {
    {"n-head", "model.heads"},
    {"n-heads", "model.heads"},
    {"num-heads", "model.heads"},
    {"num-attention-heads", "model.heads"},
    {"ffn-hidden-size", "model.neurons", "per head"},
    {"intermediate-size", "model.neurons", "per head"},
    {"d-ff", "model.neurons", "per head"},
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

const Family& family() {
  static constexpr Family kFamily{
      .name = "bdh",
      .settings = kSettings,
      .foreign_names = kForeignNames,
      .defaults = [] { return std::any(Settings()); },
      .check = check,
      .has_fused_kernels = true,
      .cheapest_chunk = [](const ModelConfig& model,
                           std::int64_t seq_len) { return cheapest_chunk(model.width, seq_len); }};
  return kFamily;
}

}  // namespace dtrain::config::bdh
