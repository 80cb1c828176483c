// DDP: every rank holds everything; gradients are summed over the ranks, bucket by bucket, under
// the backward pass.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/comm/process_group.h"
#include "dtrain/parallel/data/internal/gradient_reducer.h"
#include "dtrain/parallel/data/internal/gradient_store.h"

namespace dtrain::parallel {

/// Buckets are ranges of one size of the gradient arena, cut anew after frozen parameters, or the
/// parts that are compressed one by one, from its end to its beginning, since the last parameters'
/// gradients are final first. In the last microbatch a bucket's all-reduce starts when its
/// parameters are settled and its predecessors have started, so that every rank starts them in the
/// same order. Units mean nothing to it.
///
/// Source: Li et al., PyTorch Distributed (VLDB 2020). Differs: buckets may cut parameters, and
/// there is no copy into them, since gradients live in one arena.
class BucketReducer final : public GradientReducer {
 public:
  static constexpr std::int64_t kBucketBytes = std::int64_t{4} << 20;

  BucketReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                const param::ArenaAllocator& allocate, std::int64_t bucket_bytes = kBucketBytes);

  void begin_step(const StepTerms& terms) override { sum_->begin_step(terms); }
  void begin_microbatch(data::MicrobatchId id) override;
  [[nodiscard]] param::GradientTarget gradient_of(param::ParameterId id) override {
    return store_.gradient_of(id);
  }
  void settle(param::ParameterId id) override;
  void reduce(param::UnitId) override {}
  void end_microbatch() override { store_.end_microbatch(); }
  void finish() override;
  void end_step(bool has_updated) override { sum_->end_step(has_updated); }
  [[nodiscard]] const param::Arena& gradients() const override { return store_.gradients(); }
  [[nodiscard]] Carried carried() const override { return sum_->carried(); }
  [[nodiscard]] std::optional<CompressionReport> compression() const override {
    return sum_->report();
  }

  /// With buckets of kBucketBytes.
  [[nodiscard]] static MemoryPlan memory(const ReducerSetup& setup);
  [[nodiscard]] static ReducerTraffic traffic(const ReducerSetup& setup);

  [[nodiscard]] std::int64_t num_buckets() const { return std::ssize(buckets_); }

 private:
  struct Bucket {
    param::ElementRange range;
    std::int64_t num_parameters = 0;  // with elements in the range
    std::int64_t unfinished = 0;      // of those, in this step
  };

  [[nodiscard]] bool is_in_last_microbatch() const;
  void launch_ready();

  GradientStore store_;
  std::int64_t num_microbatches_;
  data::MicrobatchId microbatch_;
  std::vector<Bucket> buckets_;  // in launching order
  base::IndexedVector<param::ParameterId, std::vector<std::size_t>> buckets_of_;
  std::size_t num_launched_ = 0;
  std::unique_ptr<RankSum> sum_;
};

}  // namespace dtrain::parallel
