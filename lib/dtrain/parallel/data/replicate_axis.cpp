#include "dtrain/parallel/data/replicate_axis.h"

#include <algorithm>

#include "dtrain/base/check.h"

namespace dtrain::parallel {

ReplicateAxis::ReplicateAxis(const param::ArenaLayout& layout, at::ScalarType dtype,
                             GradientStore& store, comm::ProcessGroup& group, Options options)
    : store_(store), group_(group) {
  const std::int64_t element_size = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t size =
      std::max(options.bucket_bytes / element_size / param::kArenaAlignment, std::int64_t{1}) *
      param::kArenaAlignment;
  for (std::int64_t end = layout.num_elements(); end > 0; end -= size) {
    buckets_.push_back({.range = {std::max(end - size, std::int64_t{0}), end}});
  }
  buckets_of_.resize(static_cast<std::size_t>(layout.num_parameters()));
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (param::ParameterId id = 0; id < layout.num_parameters(); ++id) {
      const param::ElementRange range = layout.range(id);
      if (range.begin >= buckets_[b].range.end || range.end <= buckets_[b].range.begin) continue;
      buckets_of_[static_cast<std::size_t>(id)].push_back(b);
      ++buckets_[b].num_parameters;
    }
  }
}

void ReplicateAxis::begin_last_backward() {
  for (Bucket& bucket : buckets_) bucket.unfinished = bucket.num_parameters;
  num_launched_ = 0;
  works_.clear();
}

void ReplicateAxis::after_last_use(param::ParameterId id) {
  for (const std::size_t b : buckets_of_[static_cast<std::size_t>(id)]) --buckets_[b].unfinished;
  launch_ready();
}

void ReplicateAxis::launch_ready() {
  for (; num_launched_ < buckets_.size() && buckets_[num_launched_].unfinished == 0;
       ++num_launched_) {
    const param::ElementRange range = buckets_[num_launched_].range;
    store_.finish(range);
    if (group_.size() > 1) works_.push_back(group_.all_reduce(store_.gradients().slice(range)));
  }
}

void ReplicateAxis::finish_backward() {
  DTRAIN_CHECK(num_launched_ == buckets_.size(), "{} of {} buckets were reduced", num_launched_,
               buckets_.size());
  for (comm::Work& work : works_) work.wait();
  works_.clear();
}

}  // namespace dtrain::parallel
