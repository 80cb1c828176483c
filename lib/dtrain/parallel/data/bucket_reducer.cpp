#include "dtrain/parallel/data/bucket_reducer.h"

#include <algorithm>

#include "dtrain/base/check.h"

namespace dtrain::parallel {
namespace {

// Whole alignments, as many as fit.
std::int64_t elements_of_bucket(std::int64_t bytes, at::ScalarType dtype) {
  const std::int64_t alignment = param::bytes_of(param::kArenaAlignment, dtype);
  return std::max(bytes / alignment, std::int64_t{1}) * param::kArenaAlignment;
}

}  // namespace

BucketReducer::BucketReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                             const param::ArenaAllocator& allocate, std::int64_t bucket_bytes)
    : store_(setup.layout, setup.options.dtype, allocate, setup.options.num_microbatches,
             setup.options.reduction),
      group_(groups.along(mesh::Axis::dp)),
      num_microbatches_(setup.options.num_microbatches),
      buckets_of_(setup.layout.num_parameters()),
      codec_(setup.options.codec) {
  const param::ArenaLayout& layout = setup.layout;
  const std::int64_t size = elements_of_bucket(bucket_bytes, setup.options.dtype);
  for (std::int64_t end = layout.num_elements(); end > 0; end -= size) {
    buckets_.push_back({.range = {std::max(end - size, std::int64_t{0}), end}});
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (const param::ParameterId id : layout.parameters()) {
      if (common(layout.range(id), buckets_[b].range).is_empty()) continue;
      buckets_of_[id].push_back(b);
      ++buckets_[b].num_parameters;
    }
  }
}

bool BucketReducer::is_in_last_microbatch() const {
  return microbatch_ == data::MicrobatchId(num_microbatches_ - 1);
}

void BucketReducer::begin_microbatch(data::MicrobatchId id) {
  microbatch_ = id;
  store_.begin_microbatch(id);
  if (!is_in_last_microbatch()) return;
  for (Bucket& bucket : buckets_) bucket.unfinished = bucket.num_parameters;
  num_launched_ = 0;
  travels_.clear();
}

void BucketReducer::settle(param::ParameterId id) {
  store_.settle(id);
  if (!is_in_last_microbatch()) return;
  for (const std::size_t b : buckets_of_[id]) --buckets_[b].unfinished;
  launch_ready();
}

void BucketReducer::launch_ready() {
  for (; num_launched_ < buckets_.size() && buckets_[num_launched_].unfinished == 0;
       ++num_launched_) {
    const param::ElementRange range = buckets_[num_launched_].range;
    store_.finish(range);
    if (group_.size() == 1) continue;
    const at::Tensor gradients = store_.gradients().slice(range);
    const at::Tensor sent = codec_->encode(gradients);
    travels_.push_back({gradients, sent, group_.all_reduce(sent)});
  }
}

void BucketReducer::finish() {
  DTRAIN_CHECK(num_launched_ == buckets_.size(), "{} of {} buckets were reduced", num_launched_,
               buckets_.size());
  for (Travel& travel : travels_) {
    travel.work.wait();
    if (codec_->copies(travel.gradients.scalar_type())) {
      codec_->decode(travel.sent, travel.gradients);
    }
  }
  travels_.clear();
}

MemoryPlan BucketReducer::memory(const ReducerSetup& setup) {
  const ReducerOptions& options = setup.options;
  const std::int64_t encoded =
      setup.num_ranks == 1 ? 0 : options.codec->bytes(setup.layout.num_elements(), options.dtype);
  return {.gradients = GradientStore::bytes(setup.layout, options.dtype, options.num_microbatches,
                                            options.reduction),
          .travelling = encoded};
}

ReducerTraffic BucketReducer::traffic(const ReducerSetup& setup) {
  if (setup.num_ranks == 1) return {};
  const std::int64_t elements = setup.layout.num_elements();
  const std::int64_t size = elements_of_bucket(kBucketBytes, setup.options.dtype);
  return {.reductions = (elements + size - 1) / size,
          .bytes = 2 * setup.options.codec->sent_bytes(elements) * (setup.num_ranks - 1) /
                   setup.num_ranks};
}

}  // namespace dtrain::parallel
