// Sums compressed gradients over ranks, with error feedback.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/parallel/compress/rank_sum.h"
#include "dtrain/parallel/compress/scheme.h"
#include "dtrain/parallel/memory.h"

namespace dtrain::parallel {

/// Compresses each part of a rank's gradients by its scheme and sums it over ranks. What a rank has
/// not sent, its residual, is added to its next gradients, even if that part is then sent whole, as
/// after a resume with other settings. A step without an update leaves residuals and factors as
/// they were, so that no NaN, infinity or spike enters them.
///
/// Ranges that begin must be whole parts.
///
/// Source: Karimireddy et al., Error Feedback Fixes SignSGD (ICML 2019).
class CompressedSum final : public RankSum {
 public:
  CompressedSum(const RankSumSetup& setup, comm::ProcessGroup& group,
                const param::ArenaAllocator& allocate);

  /// What all parts take and send together.
  [[nodiscard]] static SchemeCosts costs(const RankSumSetup& setup, std::int64_t num_ranks);
  [[nodiscard]] static MemoryPlan memory(const RankSumSetup& setup, std::int64_t num_ranks);

  void begin_step(const StepTerms& terms) override;
  void begin(param::ElementRange range, const at::Tensor& gradients) override;
  void finish() override;
  void end_step(bool has_updated) override;
  [[nodiscard]] bool waits_in_begin() const override { return waits_in_begin_; }
  [[nodiscard]] Carried carried() const override;
  /// Reads the residuals once for their norm.
  [[nodiscard]] std::optional<CompressionReport> report() const override;

 private:
  struct Part {
    GradientPart place;
    std::unique_ptr<Scheme> scheme;  // null: sent whole
    bool owes = false;               // a residual that was loaded; due where the part is sent whole
  };
  struct Travel {
    Scheme& scheme;
    at::Tensor gradients;  // become the sum
    at::Tensor residual;
  };

  void begin_part(const Part& part, const at::Tensor& gradients);
  void begin_whole(Part& part, const at::Tensor& gradients);
  void find_debts();
  [[nodiscard]] double busy_seconds(base::Clock::time_point since, double waited_before) const;

  comm::ProcessGroup& group_;
  WholeSum whole_;
  std::vector<Part> parts_;                 // from the arena's end to its beginning
  std::unique_ptr<param::Arena> residual_;  // of the last update
  std::unique_ptr<param::Arena> next_;      // of this step
  std::int64_t whole_bytes_ = 0;            // of all parts, sent whole
  bool waits_in_begin_;                     // a scheme sends a second message
  StepTerms terms_;
  std::vector<Travel> travels_;
  std::vector<Part*> paying_;  // parts that send in this step what they owe
  bool has_begun_ = false;     // a step
  CompressionReport report_;
  std::int64_t bytes_before_ = 0;  // that the group had sent when the step began
};

}  // namespace dtrain::parallel
