#include "dtrain/parallel/data/internal/gradient_store.h"

#include <ATen/ops/add.h>

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/comm/tree_order.h"

namespace dtrain::parallel {
namespace {

// Returns the number of pending sums merged when microbatch `index` of `count` ends.
std::int64_t merges_of(std::int64_t index, std::int64_t count) {
  const comm::TreeStep step = comm::tree_step(index, count);
  return step.merges + (step.starts_slot ? 0 : 1);
}

std::unique_ptr<param::Arena> arena_for(const param::ArenaLayout& layout, at::ScalarType dtype,
                                        const param::ArenaAllocator& allocate) {
  return std::make_unique<param::Arena>(param::Arena::of_trained(layout, dtype, allocate));
}

}  // namespace

GradientStore::GradientStore(const param::ArenaLayout& layout, at::ScalarType dtype,
                             const param::ArenaAllocator& allocate, std::int64_t num_microbatches,
                             comm::Reduction reduction)
    : num_microbatches_(num_microbatches),
      reduction_(reduction),
      current_(arena_for(layout, dtype, allocate)),
      untouched_(layout.num_parameters(), true) {
  for (std::int64_t i = 1; i < arenas_for(num_microbatches, reduction); ++i) {
    spare_.push_back(arena_for(layout, dtype, allocate));
  }
}

std::int64_t GradientStore::arenas_for(std::int64_t num_microbatches, comm::Reduction reduction) {
  if (reduction == comm::Reduction::fast) return 1;
  std::int64_t depth = 0;
  std::int64_t deepest = 0;
  for (std::int64_t index = 0; index + 1 < num_microbatches; ++index) {
    depth += 1 - merges_of(index, num_microbatches);
    deepest = std::max(deepest, depth);
  }
  return 1 + deepest;
}

void GradientStore::begin_microbatch(data::MicrobatchId id) {
  index_ = id.value();
  if (index_ == 0) {
    // Recycles what the last step, which may have failed midway, left pending.
    std::move(pending_.begin(), pending_.end(), std::back_inserter(spare_));
    pending_.clear();
  }
  if (index_ == 0 || reduction_ == comm::Reduction::ordered) {
    std::fill(untouched_.begin(), untouched_.end(), true);
  }
}

param::GradientTarget GradientStore::gradient_of(param::ParameterId id) {
  const bool is_first = untouched_[id];
  untouched_[id] = false;
  return {.view = current_->view(id), .is_first = is_first};
}

void GradientStore::mark_gradient_ready(param::ParameterId id) {
  const at::Tensor& gradient = current_->view(id);
  if (!untouched_[id] || !gradient.defined()) return;  // undefined: frozen
  gradient.zero_();
  untouched_[id] = false;
}

void GradientStore::end_microbatch() {
  DTRAIN_CHECK(index_ + 1 < num_microbatches_);
  if (reduction_ == comm::Reduction::fast) return;
  for (std::int64_t merge = merges_of(index_, num_microbatches_); merge > 0; --merge) {
    at::Tensor sum = current_->flat();
    at::add_out(sum, pending_.back()->flat(), sum);
    spare_.push_back(std::move(pending_.back()));
    pending_.pop_back();
  }
  DTRAIN_CHECK(!spare_.empty());
  pending_.push_back(std::move(current_));
  current_ = std::move(spare_.back());
  spare_.pop_back();
}

void GradientStore::finish(param::ElementRange range) {
  DTRAIN_CHECK(index_ + 1 == num_microbatches_);
  at::Tensor sum = current_->slice(range);
  for (auto arena = pending_.rbegin(); arena != pending_.rend(); ++arena) {
    at::add_out(sum, (*arena)->slice(range), sum);
  }
}

}  // namespace dtrain::parallel
