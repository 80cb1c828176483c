#include "dtrain/parallel/pipeline/run/transfers.h"

#include <ATen/ops/empty.h>

#include "dtrain/base/error.h"

namespace dtrain::parallel {
namespace {

std::int64_t next(const comm::ProcessGroup& group) { return (group.rank() + 1) % group.size(); }

std::int64_t previous(const comm::ProcessGroup& group) {
  return (group.rank() + group.size() - 1) % group.size();
}

}  // namespace

comm::ProcessGroup& Transfers::group(Channel channel) const {
  return channel == Channel::activations ? groups_.along(mesh::Axis::pp) : groups_.pp_gradients();
}

void Transfers::offer(Channel channel, BlockId block, MicrobatchId microbatch,
                      at::IntArrayRef shape, const at::TensorOptions& options) {
  const comm::ProcessGroup& ranks = group(channel);
  const std::int64_t peer = channel == Channel::activations ? previous(ranks) : next(ranks);
  const at::Tensor room = at::empty(shape, options);
  const bool is_new = offered_[static_cast<std::size_t>(channel)]
                          .insert({{block, microbatch}, {room, group(channel).recv(room, peer)}})
                          .second;
  DTRAIN_CHECK(is_new, "block {} waits twice for microbatch {}", block.value(), microbatch.value());
}

at::Tensor Transfers::take(Channel channel, BlockId block, MicrobatchId microbatch) {
  auto& offered = offered_[static_cast<std::size_t>(channel)];
  const auto found = offered.find({block, microbatch});
  if (found == offered.end()) return {};
  Value value = std::move(found->second);
  offered.erase(found);
  value.work.wait();
  return value.tensor;
}

void Transfers::send(Channel channel, const at::Tensor& value) {
  while (!going_.empty() && going_.front().work.is_completed()) {
    going_.front().work.wait();
    going_.pop_front();
  }
  const at::Tensor sent = value.contiguous();
  const comm::ProcessGroup& ranks = group(channel);
  const std::int64_t peer = channel == Channel::activations ? next(ranks) : previous(ranks);
  going_.push_back({sent, group(channel).send(sent, peer)});
}

void Transfers::finish() {
  for (Value& value : going_) value.work.wait();
  going_.clear();
}

}  // namespace dtrain::parallel
