#include "dtrain/parallel/data/bucket_reducer.h"

#include <algorithm>

#include "dtrain/base/check.h"

namespace dtrain::parallel {

BucketReducer::BucketReducer(const param::ArenaLayout& layout, comm::ProcessGroup& group,
                             const param::ArenaAllocator& allocate, const ReducerOptions& options,
                             std::int64_t bucket_bytes)
    : store_(layout, options.dtype, allocate, options.num_microbatches, options.reduction),
      group_(group),
      num_microbatches_(options.num_microbatches),
      reduce_dtype_(options.reduce_dtype) {
  const auto element_size = static_cast<std::int64_t>(c10::elementSize(options.dtype));
  const std::int64_t size =
      std::max(bucket_bytes / element_size / param::kArenaAlignment, std::int64_t{1}) *
      param::kArenaAlignment;
  for (std::int64_t end = layout.num_elements(); end > 0; end -= size) {
    buckets_.push_back({.range = {std::max(end - size, std::int64_t{0}), end}});
  }
  buckets_of_.resize(static_cast<std::size_t>(layout.num_parameters()));
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (param::ParameterId id = 0; id < layout.num_parameters(); ++id) {
      if (common(layout.range(id), buckets_[b].range).is_empty()) continue;
      buckets_of_[static_cast<std::size_t>(id)].push_back(b);
      ++buckets_[b].num_parameters;
    }
  }
}

bool BucketReducer::is_in_last_microbatch() const { return microbatch_ + 1 == num_microbatches_; }

void BucketReducer::begin_microbatch(std::int64_t index) {
  microbatch_ = index;
  store_.begin_microbatch(index);
  if (!is_in_last_microbatch()) return;
  for (Bucket& bucket : buckets_) bucket.unfinished = bucket.num_parameters;
  num_launched_ = 0;
  travels_.clear();
}

void BucketReducer::settle(param::ParameterId id) {
  store_.settle(id);
  if (!is_in_last_microbatch()) return;
  for (const std::size_t b : buckets_of_[static_cast<std::size_t>(id)]) --buckets_[b].unfinished;
  launch_ready();
}

void BucketReducer::launch_ready() {
  for (; num_launched_ < buckets_.size() && buckets_[num_launched_].unfinished == 0;
       ++num_launched_) {
    const param::ElementRange range = buckets_[num_launched_].range;
    store_.finish(range);
    if (group_.size() == 1) continue;
    const at::Tensor gradients = store_.gradients().slice(range);
    const at::Tensor sent = gradients.to(reduce_dtype_);
    travels_.push_back({gradients, sent, group_.all_reduce(sent)});
  }
}

void BucketReducer::finish() {
  DTRAIN_CHECK(num_launched_ == buckets_.size(), "{} of {} buckets were reduced", num_launched_,
               buckets_.size());
  for (Travel& travel : travels_) {
    travel.work.wait();
    if (!travel.sent.is_alias_of(travel.gradients)) travel.gradients.copy_(travel.sent);
  }
  travels_.clear();
}

}  // namespace dtrain::parallel
