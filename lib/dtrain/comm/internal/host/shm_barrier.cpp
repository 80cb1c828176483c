#include "dtrain/comm/internal/host/shm_barrier.h"

#include <algorithm>

#include "dtrain/base/error.h"

namespace dtrain::comm {

Slot& ShmBarrier::own_slot() {
  return context_.control_block().member(context_.rank()).slots[(arrivals_ + 1) % 2];
}

// Double buffering: the owner writes a slot between its arrivals s and s + 1, the others read it
// between their arrivals s + 1 and s + 2, and the owner overwrites it after its arrival s + 2, when
// all others have made theirs. This requires that the arrival count is never reset.
const Slot& ShmBarrier::slot_of(std::int64_t rank) {
  return context_.control_block().member(rank).slots[arrivals_ % 2];
}

void ShmBarrier::exchange(const CollectiveCall& call, const std::byte* payload, std::int64_t bytes,
                          const base::Deadline& deadline) {
  Slot& slot = own_slot();
  slot.buffer = {.call = call};
  std::copy_n(payload, bytes, slot.data);
  arrive_with_call(deadline);
}

std::span<const std::byte* const> ShmBarrier::payloads(std::int64_t offset) {
  payloads_.clear();
  for (std::int64_t rank = 0; rank < context_.size(); ++rank) {
    payloads_.push_back(slot_of(rank).data + offset);
  }
  return payloads_;
}

void ShmBarrier::arrive(const base::Deadline& deadline) {
  ControlBlock& block = context_.control_block();
  const std::uint32_t target = ++arrivals_;
  // The chain of read-modify-writes orders every member's writes before the barrier opens.
  const auto all = static_cast<std::uint32_t>(context_.size()) * target;
  const bool last = block.arrived.fetch_add(1) + 1 == all;
  if (last) advance(block.barrier, target);
  // Stored last, so that a member that dies midway counts as missing while the barrier is closed.
  block.member(context_.rank()).arrivals.store(target, std::memory_order_relaxed);
  if (last) return;
  context_.wait(block.barrier, target, deadline, [this] {
    std::vector<std::int64_t> missing = not_arrived();
    awaited_ = missing.empty() ? -1 : missing.front();
    return missing;
  });
  awaited_ = -1;
}

void ShmBarrier::arrive_with_call(const base::Deadline& deadline) {
  arrive(deadline);
  const std::int64_t rank = context_.rank();
  const CollectiveCall& call = slot_of(rank).buffer.call;
  for (std::int64_t member = 0; member < context_.size(); ++member) {
    const CollectiveCall& other = slot_of(member).buffer.call;
    DTRAIN_CHECK(other == call,
                 "ranks {} and {} of a group made different calls: operation {} of {} elements of "
                 "type {} ({}), operation {} of {} elements of type {} ({})",
                 rank, member, static_cast<int>(call.op), call.count, call.dtype, call.variant,
                 static_cast<int>(other.op), other.count, other.dtype, other.variant);
  }
}

std::vector<std::int64_t> ShmBarrier::not_arrived() const {
  std::vector<std::int64_t> missing;
  for (std::int64_t member = 0; member < context_.size(); ++member) {
    const auto arrivals =
        context_.control_block().member(member).arrivals.load(std::memory_order_relaxed);
    if (!has_reached(arrivals, arrivals_)) missing.push_back(member);
  }
  return missing;
}

}  // namespace dtrain::comm
