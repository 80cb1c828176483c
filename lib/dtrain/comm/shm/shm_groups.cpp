#include "dtrain/comm/shm/shm_groups.h"

#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/printable.h"
#include "dtrain/comm/shm/shm_transport.h"

namespace dtrain::comm {

std::unique_ptr<Transport> ShmGroups::connect(const std::string& key,
                                              const GroupIdentity& identity) {
  std::string note = "here";
  if (identity.rank == 0) {
    note = std::to_string(make_block(static_cast<std::int64_t>(identity.world_ranks.size())));
  }
  const auto notes = exchange_notes(*rendezvous_->store, key, identity.world_ranks, note,
                                    base::Deadline(deadline_after_));
  auto* block = block_at(notes.front(), identity);
  Seat seat{.block = {neighbours_, block},  // as long as the mapping
            .rank = identity.rank,
            .world_ranks = identity.world_ranks};
  return std::make_unique<ShmTransport>(std::move(seat), neighbours_);
}

// The control block at the offset that the group's first member has reported.
ControlBlock* ShmGroups::block_at(const std::string& note, const GroupIdentity& identity) {
  const std::int64_t owner = identity.world_ranks.front();
  const auto offset = ControlBlock::offset_of(
      note, static_cast<std::int64_t>(identity.world_ranks.size()), neighbours_->bytes(owner));
  if (!offset) {
    base::fail(base::ErrorKind::comm,
               "rank {} tells that group '{}' meets at offset \"{}\" of its memory of {} bytes, "
               "which cannot be",
               owner, identity.name, base::printable(note, 40), neighbours_->bytes(owner));
  }
  return reinterpret_cast<ControlBlock*>(neighbours_->base(owner) +
                                         static_cast<std::uintptr_t>(*offset));
}

// The offset of a new control block.
std::int64_t ShmGroups::make_block(std::int64_t size) {
  Segment& segment = neighbours_->segment();
  std::erase_if(own_blocks_, [&segment](const OwnBlock& own) {
    if (!own.block->is_abandoned()) return false;
    segment.release(own.offset, own.bytes);
    return true;
  });
  OwnBlock own{.bytes = ControlBlock::bytes_for(size)};
  own.offset = segment.reserve(own.bytes);
  own.block = reinterpret_cast<ControlBlock*>(segment.data() + own.offset);
  own.block->size = size;
  own_blocks_.push_back(own);
  return own.offset;
}

}  // namespace dtrain::comm
