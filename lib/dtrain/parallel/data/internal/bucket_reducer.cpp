#include "dtrain/parallel/data/internal/bucket_reducer.h"

#include <algorithm>
#include <ranges>

#include "dtrain/base/error.h"
#include "dtrain/parallel/compress/all_reducer.h"

namespace dtrain::parallel {
namespace {

bool compresses(const ReducerSetup& setup) {
  return setup.num_ranks > 1 && !setup.options.compression.scheme.is_none();
}

AllReducerSetup all_reducer_setup(const ReducerSetup& setup) {
  return {.layout = setup.layout,
          .compression = setup.options.compression,
          .dtype = setup.options.dtype,
          .codec = setup.options.codec};
}

std::vector<param::ElementRange> ranges_of_buckets(const ReducerSetup& setup,
                                                   std::int64_t bucket_bytes) {
  const param::ArenaLayout& layout = setup.layout;
  const Compression& compression = setup.options.compression;
  std::vector<param::ElementRange> ranges;
  if (compresses(setup)) {
    for (const GradientPart& part : gradient_parts(layout, param::ShardId(0), compression)) {
      ranges.push_back(part.range);
    }
    return ranges;
  }
  // Round the bucket size down to a multiple of the alignment.
  const std::int64_t alignment = param::bytes_of(param::kArenaAlignment, setup.options.dtype);
  const std::int64_t size =
      std::max(bucket_bytes / alignment, std::int64_t{1}) * param::kArenaAlignment;
  const std::vector<param::ElementRange> runs = layout.ranges(param::Elements::trained);
  for (const param::ElementRange run : std::views::reverse(runs)) {
    for (std::int64_t end = run.end; end > run.begin; end -= size) {
      ranges.push_back({std::max(end - size, run.begin), end});
    }
  }
  return ranges;
}

}  // namespace

BucketReducer::BucketReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                             const param::ArenaAllocator& allocate, std::int64_t bucket_bytes)
    : store_(setup.layout, setup.options.dtype, allocate, setup.options.num_microbatches,
             setup.options.reduction),
      num_microbatches_(setup.options.num_microbatches),
      buckets_of_(setup.layout.num_parameters()),
      all_reducer_(
          make_all_reducer(all_reducer_setup(setup), groups.along(mesh::Axis::dp), allocate)) {
  const param::ArenaLayout& layout = setup.layout;
  for (const param::ElementRange range : ranges_of_buckets(setup, bucket_bytes)) {
    buckets_.push_back({.range = range});
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (const param::ParameterId id : layout.parameters()) {
      if (intersection(layout.range(id), buckets_[b].range).is_empty()) continue;
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
  for (Bucket& bucket : buckets_) bucket.pending = bucket.num_parameters;
  num_launched_ = 0;
}

void BucketReducer::mark_gradient_ready(param::ParameterId id) {
  store_.mark_gradient_ready(id);
  if (!is_in_last_microbatch()) return;
  for (const std::size_t b : buckets_of_[id]) --buckets_[b].pending;
  launch_ready();
}

void BucketReducer::launch_ready() {
  for (; num_launched_ < buckets_.size() && buckets_[num_launched_].pending == 0; ++num_launched_) {
    const param::ElementRange range = buckets_[num_launched_].range;
    store_.finish(range);
    all_reducer_->begin(range, store_.gradients().slice(range));
  }
}

void BucketReducer::finish() {
  DTRAIN_CHECK(num_launched_ == buckets_.size(), "{} of {} buckets were reduced", num_launched_,
               buckets_.size());
  all_reducer_->finish();
}

MemoryPlan BucketReducer::memory(const ReducerSetup& setup) {
  const ReducerOptions& options = setup.options;
  const std::int64_t encoded =
      setup.num_ranks == 1 ? 0 : options.codec->bytes(setup.layout.num_trained(), options.dtype);
  MemoryPlan memory{.gradients = GradientStore::bytes(setup.layout, options.dtype,
                                                      options.num_microbatches, options.reduction),
                    .encoded_gradients = encoded};
  if (compresses(setup)) {
    memory = memory + CompressedAllReducer::memory(all_reducer_setup(setup), setup.num_ranks);
  }
  return memory;
}

ReducerTraffic BucketReducer::traffic(const ReducerSetup& setup) {
  if (setup.num_ranks == 1) return {};
  if (compresses(setup)) {
    const SchemeCosts costs =
        CompressedAllReducer::costs(all_reducer_setup(setup), setup.num_ranks);
    return {.reductions = costs.calls, .bytes = costs.sent};
  }
  const std::int64_t sent = setup.options.codec->sent_bytes(setup.layout.num_trained());
  return {.reductions = std::ssize(ranges_of_buckets(setup, kBucketBytes)),
          .bytes = bytes_in_ring(sent, setup.num_ranks)};
}

}  // namespace dtrain::parallel
