// Sums of gradients over ranks that hold the same elements.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/parallel/compress/internal/scheme.h"
#include "dtrain/parallel/memory.h"
#include "dtrain/param/arena.h"

namespace dtrain::parallel {

/// Encodes gradients element by element, so that any range of them travels alone and sums of
/// encoded gradients, which ranks add in tree order, decode to the gradients' sum.
///
/// Threads: any.
class GradientCodec {
 public:
  virtual ~GradientCodec() = default;

  /// Returns the dtype of encoded gradients.
  [[nodiscard]] virtual at::ScalarType dtype() const = 0;
  /// True where gradients held in `held` travel in memory of their own.
  [[nodiscard]] virtual bool copies(at::ScalarType held) const = 0;
  /// gradients (n) -> (n) in dtype(); where nothing is copied they are the gradients themselves.
  [[nodiscard]] virtual at::Tensor encode(const at::Tensor& gradients) const = 0;
  /// Writes what a sum (n) of encoded gradients stands for to `gradients` (n); called where
  /// copies() alone.
  virtual void decode(const at::Tensor& sum, const at::Tensor& gradients) const = 0;

  /// Returns the bytes that `elements` gradients held in `held` take on top while they travel.
  [[nodiscard]] std::int64_t bytes(std::int64_t elements, at::ScalarType held) const {
    return copies(held) ? sent_bytes(elements) : 0;
  }
  /// Returns the bytes of `elements` encoded gradients.
  [[nodiscard]] std::int64_t sent_bytes(std::int64_t elements) const {
    return elements * static_cast<std::int64_t>(c10::elementSize(dtype()));
  }
};

/// Rounds to `dtype`; gradients that are held in it travel where they lie.
[[nodiscard]] std::shared_ptr<const GradientCodec> travel_in(at::ScalarType dtype);

/// What holds for the sums of one step; equal on all ranks.
struct StepTerms {
  bool compresses = true;  ///< false: gradients are sent whole
  double loss_scale = 1;   ///< the factor of gradients
};

/// What a reducer carries from step to step.
struct Carried {
  /// Residuals: each rank has its own; only their sum over ranks matters. Null: none.
  const param::Arena* residuals = nullptr;
  /// Equal on all ranks that hold the same part, and of no use where parts are cut elsewhere.
  struct Factor {
    param::ParameterId id;
    param::ElementRange range;  ///< of the part
    at::Tensor values;          ///< (n, k)
  };
  std::vector<Factor> factors = {};
};

/// What compression did in the last step, on this rank.
struct CompressionReport {
  std::int64_t bytes_sent = 0;   ///< by the group, as it has counted
  std::int64_t bytes_whole = 0;  ///< that gradients sent whole would take, in a ring
  /// To compress, decompress and find this report's norm, without waits; the host's.
  double seconds = 0;
  double residual_norm = 0;  ///< of what this rank has not sent yet
};

/// Sums gradients of ranges, which begin while others are under way.
///
/// Collective: begin and finish, in the same order on all ranks.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class RankSum {
 public:
  virtual ~RankSum() = default;

  virtual void begin_step(const StepTerms& terms) = 0;
  /// Starts to replace the gradients (range.size()) of these elements by their sum. `gradients`
  /// stay in use until finish() returns.
  virtual void begin(param::ElementRange range, const at::Tensor& gradients) = 0;
  virtual void finish() = 0;
  /// After finish(). has_updated: the sums have been applied.
  virtual void end_step(bool has_updated) = 0;

  /// True: begin() may wait for the other ranks. All ranks must then call it at the same place
  /// among their calls over other groups too, or they wait for each other in a circle.
  [[nodiscard]] virtual bool waits_in_begin() const { return false; }
  [[nodiscard]] virtual Carried carried() const { return {}; }
  /// Nothing where nothing is compressed.
  [[nodiscard]] virtual std::optional<CompressionReport> report() const { return std::nullopt; }
};

/// Sums in the form of a codec, each range by one call.
class WholeSum final : public RankSum {
 public:
  WholeSum(comm::ProcessGroup& group, std::shared_ptr<const GradientCodec> codec)
      : group_(group), codec_(std::move(codec)) {}

  void begin_step(const StepTerms&) override { travels_.clear(); }
  void begin(param::ElementRange, const at::Tensor& gradients) override { begin(gradients); }
  void begin(const at::Tensor& gradients);
  void finish() override;
  void end_step(bool) override {}

 private:
  struct Travel {
    at::Tensor gradients;  // where they belong
    at::Tensor sent;       // the same tensor, or encoded
    comm::Work work;
  };

  comm::ProcessGroup& group_;
  std::shared_ptr<const GradientCodec> codec_;
  std::vector<Travel> travels_;
};

/// Which gradients a RankSum sums, and how they are sent.
struct RankSumSetup {
  const param::ArenaLayout& layout;
  param::ShardId shard{};
  Compression compression = {};
  at::ScalarType dtype = at::kFloat;                ///< of gradients
  std::shared_ptr<const GradientCodec> codec = {};  ///< of what is sent whole
};

/// `layout`, `group` and what `allocate` refers to must outlive the sum.
[[nodiscard]] std::unique_ptr<RankSum> make_rank_sum(const RankSumSetup& setup,
                                                     comm::ProcessGroup& group,
                                                     const param::ArenaAllocator& allocate);

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
