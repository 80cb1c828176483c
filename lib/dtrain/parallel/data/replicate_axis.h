// DDP: every rank holds everything; gradients are summed over the ranks, bucket by bucket, under
// the backward pass.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/comm/process_group.h"
#include "dtrain/parallel/data_axis.h"
#include "dtrain/parallel/gradient_store.h"

namespace dtrain::parallel {

/// Buckets are equal ranges of the gradient arena, from its end to its beginning, since the last
/// parameters' gradients are final first. A bucket's all-reduce starts when its parameters have no
/// use left and its predecessors have started, so that every rank starts them in the same order.
///
/// Source: Li et al., PyTorch Distributed (VLDB 2020). Differs: buckets may cut parameters, and
/// there is no copy into
///         them, since gradients live in one arena.
class ReplicateAxis : public DataAxis {
 public:
  struct Options {
    std::int64_t bucket_bytes = std::int64_t{4} << 20;
  };

  /// `store` and `group` must outlive this.
  ReplicateAxis(const param::ArenaLayout& layout, at::ScalarType dtype, GradientStore& store,
                comm::ProcessGroup& group, Options options);

  void begin_last_backward() override;
  void after_last_use(param::ParameterId id) override;
  void finish_backward() override;

  [[nodiscard]] std::int64_t num_buckets() const {
    return static_cast<std::int64_t>(buckets_.size());
  }

 private:
  struct Bucket {
    param::ElementRange range;
    std::int64_t num_parameters = 0;  // with elements in the range
    std::int64_t unfinished = 0;      // of those, in this step
  };

  void launch_ready();

  GradientStore& store_;
  comm::ProcessGroup& group_;
  std::vector<Bucket> buckets_;                       // in launching order
  std::vector<std::vector<std::size_t>> buckets_of_;  // by parameter
  std::size_t num_launched_ = 0;
  std::vector<comm::Work> works_;
};

}  // namespace dtrain::parallel
