// All-reduces gradients over ranks that hold the same elements, with optional compression.
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

/// Element-wise encoding of gradients for sending. Any range can be sent on its own, and the sum of
/// encoded gradients, added in tree order, decodes to the sum of the gradients.
///
/// Threads: any.
class GradientCodec {
 public:
  virtual ~GradientCodec() = default;

  /// Returns the dtype of encoded gradients.
  [[nodiscard]] virtual at::ScalarType dtype() const = 0;
  /// True if gradients of dtype `held` are copied to be sent.
  [[nodiscard]] virtual bool copies(at::ScalarType held) const = 0;
  /// Returns the encoded gradients, (n) -> (n) in dtype(); `gradients` itself if copies() is false.
  [[nodiscard]] virtual at::Tensor encode(const at::Tensor& gradients) const = 0;
  /// Decodes `sum` (n), a sum of encoded gradients, into `gradients` (n). Called only if copies()
  /// is true.
  virtual void decode(const at::Tensor& sum, const at::Tensor& gradients) const = 0;

  /// Returns the extra bytes that `elements` gradients of dtype `held` take while they are sent.
  [[nodiscard]] std::int64_t bytes(std::int64_t elements, at::ScalarType held) const {
    return copies(held) ? sent_bytes(elements) : 0;
  }
  /// Returns the bytes of `elements` encoded gradients.
  [[nodiscard]] std::int64_t sent_bytes(std::int64_t elements) const {
    return elements * static_cast<std::int64_t>(c10::elementSize(dtype()));
  }
};

/// Returns a codec that casts to `dtype`; gradients that already have it are sent in place.
[[nodiscard]] std::shared_ptr<const GradientCodec> dtype_codec(at::ScalarType dtype);

/// Options of one step's gradient reduction; equal on all ranks.
struct StepReduceOptions {
  bool compresses = true;  ///< false: gradients are sent uncompressed
  double loss_scale = 1;   ///< factor that the gradients contain
};

/// State of gradient compression that persists across steps: error-feedback residuals and
/// warm-start factors.
struct ErrorFeedbackState {
  /// Gradients not sent yet; null: none. They differ between ranks, and only their sum over ranks
  /// affects results.
  const param::Arena* residuals = nullptr;
  /// PowerSGD warm-start factor, equal on all ranks that hold the same part. Unusable after the
  /// division into parts has changed.
  struct Factor {
    param::ParameterId id;
    param::ElementRange range;  ///< range of the part in the arena
    at::Tensor values;          ///< (n, k)
  };
  std::vector<Factor> factors = {};
};

/// Compression statistics of the last step on this rank.
struct CompressionReport {
  std::int64_t bytes_sent = 0;   ///< sent by this rank, from the group's counters
  std::int64_t bytes_whole = 0;  ///< bytes of a ring all-reduce of the uncompressed gradients
  /// Host time to compress, decompress and compute residual_norm, excluding waits.
  double seconds = 0;
  double residual_norm = 0;  ///< norm of this rank's residuals
};

/// All-reduces ranges of gradients; several ranges may be in flight.
///
/// Collective: begin and finish, in the same order on all ranks.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class AllReducer {
 public:
  virtual ~AllReducer() = default;

  virtual void begin_step(const StepReduceOptions& options) = 0;
  /// Starts to replace `gradients` (range.size()), the gradients of the range's elements, by their
  /// sum over ranks.
  ///
  /// Async: `gradients` are in use until finish() returns.
  virtual void begin(param::ElementRange range, const at::Tensor& gradients) = 0;
  virtual void finish() = 0;
  /// Call after finish(). has_updated: the optimizer has applied the sums.
  virtual void end_step(bool has_updated) = 0;

  /// True if begin() may block on other ranks. To avoid deadlock, all ranks must then make begin()
  /// and their calls over other groups in the same order.
  [[nodiscard]] virtual bool blocks_in_begin() const { return false; }
  [[nodiscard]] virtual ErrorFeedbackState error_feedback() const { return {}; }
  /// Empty without compression.
  [[nodiscard]] virtual std::optional<CompressionReport> report() const { return std::nullopt; }
};

/// All-reduces each range, encoded by a codec, in one call.
class DenseAllReducer final : public AllReducer {
 public:
  DenseAllReducer(comm::ProcessGroup& group, std::shared_ptr<const GradientCodec> codec)
      : group_(group), codec_(std::move(codec)) {}

  void begin_step(const StepReduceOptions&) override { in_flight_.clear(); }
  void begin(param::ElementRange, const at::Tensor& gradients) override { begin(gradients); }
  void begin(const at::Tensor& gradients);
  void finish() override;
  void end_step(bool) override {}

 private:
  struct InFlightReduction {
    at::Tensor gradients;  // the destination
    at::Tensor sent;       // the same tensor, or encoded
    comm::Work work;
  };

  comm::ProcessGroup& group_;
  std::shared_ptr<const GradientCodec> codec_;
  std::vector<InFlightReduction> in_flight_;
};

/// The gradients that an AllReducer sums, and the encoding in which it sends them.
struct AllReducerSetup {
  const param::ArenaLayout& layout;
  param::ShardId shard{};
  Compression compression = {};
  at::ScalarType dtype = at::kFloat;                ///< gradient dtype
  std::shared_ptr<const GradientCodec> codec = {};  ///< for gradients sent uncompressed
};

/// Makes a DenseAllReducer without compression or for a single rank, otherwise a
/// CompressedAllReducer. setup.layout, `group` and what `allocate` refers to must outlive it.
[[nodiscard]] std::unique_ptr<AllReducer> make_all_reducer(const AllReducerSetup& setup,
                                                           comm::ProcessGroup& group,
                                                           const param::ArenaAllocator& allocate);

/// Compresses each part of a rank's gradients by the part's scheme and all-reduces it, with error
/// feedback: a rank adds the gradients that it has not sent, its residual, to its next gradients.
/// This also holds if the part is then sent uncompressed, for example after resuming with other
/// settings. A step without an update leaves residuals and factors unchanged, so no NaN, infinity
/// or spike enters them.
///
/// Each range passed to begin() must consist of whole parts.
///
/// Source: Karimireddy et al., Error Feedback Fixes SignSGD (ICML 2019).
class CompressedAllReducer final : public AllReducer {
 public:
  CompressedAllReducer(const AllReducerSetup& setup, comm::ProcessGroup& group,
                       const param::ArenaAllocator& allocate);

  /// Returns the memory and traffic of all parts together.
  [[nodiscard]] static SchemeCosts costs(const AllReducerSetup& setup, std::int64_t num_ranks);
  [[nodiscard]] static MemoryPlan memory(const AllReducerSetup& setup, std::int64_t num_ranks);

  void begin_step(const StepReduceOptions& options) override;
  void begin(param::ElementRange range, const at::Tensor& gradients) override;
  void finish() override;
  void end_step(bool has_updated) override;
  [[nodiscard]] bool blocks_in_begin() const override { return blocks_in_begin_; }
  [[nodiscard]] ErrorFeedbackState error_feedback() const override;
  /// Reads all residuals, to compute their norm.
  [[nodiscard]] std::optional<CompressionReport> report() const override;

 private:
  struct Part {
    GradientPart place;
    std::unique_ptr<Scheme> scheme;  // null: sent uncompressed
    bool has_residual = false;       // a residual was loaded; add it to uncompressed gradients
  };
  struct InFlightPart {
    Scheme& scheme;
    at::Tensor gradients;  // overwritten by the sum
    at::Tensor residual;
  };

  void begin_part(const Part& part, const at::Tensor& gradients);
  void begin_dense(Part& part, const at::Tensor& gradients);
  [[nodiscard]] double busy_seconds(base::Clock::time_point since, double waited_before) const;

  comm::ProcessGroup& group_;
  DenseAllReducer dense_;
  std::vector<Part> parts_;                 // from the arena's end to its beginning
  std::unique_ptr<param::Arena> residual_;  // as of the last update
  std::unique_ptr<param::Arena> next_;      // as of this step
  std::int64_t whole_bytes_ = 0;            // uncompressed size of all parts
  bool blocks_in_begin_;                    // true if a scheme sends a second message
  StepReduceOptions step_;
  std::vector<InFlightPart> in_flight_;
  std::vector<Part*> flushed_;  // parts whose residual this step sends
  bool has_begun_ = false;      // the first step
  CompressionReport report_;
  std::int64_t bytes_before_ = 0;  // sent by the group before this step
};

}  // namespace dtrain::parallel
