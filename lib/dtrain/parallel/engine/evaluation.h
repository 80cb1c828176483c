// What an evaluation reads, and its losses, which ranks sum while it goes on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>

#include "dtrain/comm/process_group.h"
#include "dtrain/data/batch.h"

namespace dtrain::parallel {

/// An evaluation over all ranks: batch b holds the sequences [b * batch_size, + batch_size), the
/// last one possibly fewer, and is computed by data-parallel rank b mod size.
struct EvaluationPlan {
  std::int64_t num_sequences = 0;
  std::int64_t length = 0;  ///< tokens of a sequence
  std::int64_t batch_size = 1;
  /// Reads the sequences [first, first + count). Asked for this rank's batches, one at a time.
  std::function<data::Batch(std::int64_t first, std::int64_t count)> read = {};
  /// Whether this rank wants to end early; asked after each batch. Empty: it never does.
  std::function<bool()> wants_stop = {};
};

/// Sums the losses of an evaluation's sequences in float64, in their order, and tells all ranks of
/// a wish to stop. A round is one batch of every data-parallel rank. Each round's losses travel
/// while the next rounds are computed.
///
/// Collective: every rank of `world` makes the same calls.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class EvaluationReports {
 public:
  /// max_under_way: rounds whose losses may be on their way when the next one begins.
  EvaluationReports(comm::ProcessGroup& world, std::int64_t max_under_way)
      : world_(world), max_under_way_(max_under_way) {}

  /// Room for the losses of the next round, (num_sequences) float64, zero. Adding the zeros of
  /// ranks that write nothing there is exact.
  [[nodiscard]] at::Tensor begin_round(std::int64_t num_sequences);
  void end_round(bool wants_stop);

  /// Whether any rank wanted to stop after a round whose losses have come; equal on all ranks.
  [[nodiscard]] bool is_stopped() const { return is_stopped_; }
  /// Waits for all rounds; the sum of all losses.
  [[nodiscard]] double finish();

 private:
  struct Round {
    at::Tensor slots;  // (sequences + 1) float64: losses, then how many ranks want to stop
    comm::Work reduced;
  };
  void take_first();

  comm::ProcessGroup& world_;
  std::int64_t max_under_way_;
  at::Tensor current_;  // slots of the round under way
  std::deque<Round> under_way_;
  double sum_ = 0;
  bool is_stopped_ = false;
};

/// Writes the sum of each row of losses (B, T) to sums (B) float64, its tokens in order, whatever
/// the number of rows.
void sum_rows(const at::Tensor& losses, const at::Tensor& sums);

}  // namespace dtrain::parallel
