#include "dtrain/comm/host/process_neighbours.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"

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

void Roster::enter(std::int64_t rank) {
  struct flock byte = byte_of(rank);
  if (::fcntl(file_.get(), F_SETLK, &byte) == 0) return;
  base::fail(base::ErrorKind::comm, "cannot lock a byte of shared memory (fcntl): {}",
             std::strerror(errno));
}

bool Roster::has(std::int64_t rank) const {
  struct flock byte = byte_of(rank);
  return ::fcntl(file_.get(), F_GETLK, &byte) != 0 || byte.l_type != F_UNLCK;
}

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
