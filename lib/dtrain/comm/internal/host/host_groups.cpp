#include "dtrain/comm/internal/host/host_groups.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"

namespace dtrain::comm {
namespace {

struct flock byte_of(std::int64_t rank) {
  struct flock byte {};
  byte.l_type = F_WRLCK;
  byte.l_whence = SEEK_SET;
  byte.l_start = rank;
  byte.l_len = 1;
  return byte;
}

}  // namespace

void LivenessLocks::lock(std::int64_t rank) {
  struct flock byte = byte_of(rank);
  if (::fcntl(file_.get(), F_SETLK, &byte) == 0) return;
  base::fail(base::ErrorKind::comm, "cannot lock a byte of shared memory (fcntl): {}",
             std::strerror(errno));
}

bool LivenessLocks::is_alive(std::int64_t rank) const {
  struct flock byte = byte_of(rank);
  return ::fcntl(file_.get(), F_GETLK, &byte) != 0 || byte.l_type != F_UNLCK;
}

ProcessPeerMemory::ProcessPeerMemory(HostMember self, std::shared_ptr<Segment> segment,
                                     const base::Deadline& deadline)
    : own_rank_(self.rank), num_ranks_(std::ssize(self.ranks)), segment_(std::move(segment)) {
  exchange_segments(std::move(self), segment_->file(), deadline,
                    [this](std::int64_t rank, base::Descriptor memory) {
                      if (!is_own(rank)) mappings_[rank] = std::make_unique<Mapping>(memory);
                      if (!liveness_) liveness_.emplace(std::move(memory));
                    });
  liveness_->lock(own_rank_);
}

GroupMembership HostGroups::join(const GroupPlan& plan) {
  std::string value = "here";
  if (plan.rank == 0) {
    value = std::to_string(make_block(std::ssize(plan.world_ranks)));
  }
  const auto values = store_all_gather(*rendezvous_->store, plan.key, plan.world_ranks, value,
                                       base::Deadline(timeout_));
  auto* block = block_at(values.front(), plan);
  return {.block = {peer_memory_, block},  // as long as the mapping
          .rank = plan.rank,
          .world_ranks = plan.world_ranks};
}

// Returns the control block at the offset that the group's first member reported.
ControlBlock* HostGroups::block_at(const std::string& value, const GroupPlan& plan) {
  const std::int64_t owner = plan.world_ranks.front();
  const auto offset =
      ControlBlock::offset_of(value, std::ssize(plan.world_ranks), peer_memory_->bytes(owner));
  if (!offset) {
    base::fail(base::ErrorKind::comm,
               "rank {0} reported the invalid offset \"{2}\" in its {3} bytes of shared memory for "
               "group '{1}'",
               owner, plan.name, base::printable(value, 40), peer_memory_->bytes(owner));
  }
  return reinterpret_cast<ControlBlock*>(peer_memory_->base(owner) +
                                         static_cast<std::uintptr_t>(*offset));
}

// Allocates a control block and returns its offset.
std::int64_t HostGroups::make_block(std::int64_t size) {
  Segment& segment = peer_memory_->segment();
  std::erase_if(own_blocks_, [&segment](const OwnBlock& own) {
    if (!own.block->is_abandoned()) return false;
    segment.release(own.extent);
    return true;
  });
  OwnBlock own;
  own.extent = segment.reserve(ControlBlock::bytes_for(size), ControlBlock::common_bytes_for(size));
  own.block = reinterpret_cast<ControlBlock*>(segment.data() + own.extent.offset);
  own.block->size = size;
  own_blocks_.push_back(own);
  return own.extent.offset;
}

}  // namespace dtrain::comm
