// DDP gradient reducer: all-reduces unsharded gradients in buckets, overlapping the backward pass.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/comm/process_group.h"
#include "dtrain/parallel/data/internal/gradient_reducer.h"
#include "dtrain/parallel/data/internal/gradient_store.h"

namespace dtrain::parallel {

/// All-reduces the gradient arena in buckets. Without compression, buckets are equal-sized ranges,
/// split at frozen parameters; with compression, each of gradient_parts() is a bucket. Buckets are
/// ordered from the arena's end to its beginning, because the last parameters' gradients are ready
/// first. In the last microbatch a bucket's all-reduce starts when its gradients are ready and all
/// earlier buckets have started, so every rank starts them in the same order. Ignores the unit
/// schedule: reduce() is a no-op.
///
/// Source: Li et al., PyTorch Distributed (VLDB 2020). Differs: buckets may split parameters, and
///         need no copies, since gradients are stored in one arena.
class BucketReducer final : public GradientReducer {
 public:
  static constexpr std::int64_t kBucketBytes = std::int64_t{4} << 20;

  BucketReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                const param::ArenaAllocator& allocate, std::int64_t bucket_bytes = kBucketBytes);

  void begin_step(const StepReduceOptions& options) override { all_reducer_->begin_step(options); }
  void begin_microbatch(data::MicrobatchId id) override;
  [[nodiscard]] param::GradientTarget gradient_of(param::ParameterId id) override {
    return store_.gradient_of(id);
  }
  void mark_gradient_ready(param::ParameterId id) override;
  void reduce(param::UnitId) override {}
  void end_microbatch() override { store_.end_microbatch(); }
  void finish() override;
  void end_step(bool has_updated) override { all_reducer_->end_step(has_updated); }
  [[nodiscard]] const param::Arena& gradients() const override { return store_.gradients(); }
  [[nodiscard]] ErrorFeedbackState error_feedback() const override {
    return all_reducer_->error_feedback();
  }
  [[nodiscard]] std::optional<CompressionReport> compression() const override {
    return all_reducer_->report();
  }

  /// Predict memory and traffic for buckets of kBucketBytes.
  [[nodiscard]] static MemoryPlan memory(const ReducerSetup& setup);
  [[nodiscard]] static ReducerTraffic traffic(const ReducerSetup& setup);

  [[nodiscard]] std::int64_t num_buckets() const { return std::ssize(buckets_); }

 private:
  struct Bucket {
    param::ElementRange range;
    std::int64_t num_parameters = 0;  // parameters that overlap the range
    std::int64_t pending = 0;         // those of them that are not ready in this step
  };

  [[nodiscard]] bool is_in_last_microbatch() const;
  void launch_ready();

  GradientStore store_;
  std::int64_t num_microbatches_;
  data::MicrobatchId microbatch_;
  std::vector<Bucket> buckets_;  // in launch order
  base::IndexedVector<param::ParameterId, std::vector<std::size_t>> buckets_of_;
  std::size_t num_launched_ = 0;
  std::unique_ptr<AllReducer> all_reducer_;
};

}  // namespace dtrain::parallel
