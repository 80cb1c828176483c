#include "dtrain/comm/host/process_neighbours.h"

#include <utility>

namespace dtrain::comm {

ProcessNeighbours::ProcessNeighbours(HostMember self, std::shared_ptr<Segment> segment,
                                     const base::Deadline& deadline)
    : own_rank_(self.rank),
      num_ranks_(static_cast<std::int64_t>(self.ranks.size())),
      segment_(std::move(segment)) {
  exchange_segments(std::move(self), segment_->file(), deadline,
                    [this](std::int64_t rank, base::Descriptor memory) {
                      if (!is_own(rank)) mappings_[rank] = std::make_unique<Mapping>(memory);
                      if (!roster_) roster_.emplace(std::move(memory));
                    });
  roster_->enter(own_rank_);
}

}  // namespace dtrain::comm
