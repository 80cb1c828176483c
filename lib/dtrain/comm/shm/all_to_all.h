// Exchanges parts between all pairs of ranks that see each other's memory. Private to comm/shm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dtrain/comm/host/meeting.h"
#include "dtrain/comm/parted_tensor.h"

namespace dtrain::comm {

/// One all-to-all. Every rank lays out a table with a piece for each peer; a peer copies the piece
/// from where it lies. An input that peers cannot reach passes through the staging area, in as many
/// rounds as its largest part needs. Each round takes two meetings.
class AllToAll {
 public:
  /// staging: `staging_bytes` of memory that the peers can reach. Everything outlives this.
  AllToAll(Meeting& meeting, std::byte* staging, const PartedTensor& input,
           const PartedTensor& output);

  /// Throws: TransportFailure; Error{internal} naming two ranks that expect different sizes.
  void run(const base::Deadline& deadline);

 private:
  /// Lays out all peers' pieces of one round, from byte `first` of their parts.
  void lay_out(std::int64_t first);
  /// The bytes of this part that a peer can read in this round.
  [[nodiscard]] std::span<std::byte> piece_for(std::int64_t peer, std::int64_t first);
  /// Copies this rank's pieces to byte `first` of its parts; returns whether any rank has more.
  [[nodiscard]] bool take(std::int64_t first);

  Meeting& meeting_;
  Piece* table_;  // by peer, at the start of the staging area; staged pieces follow
  const PartedTensor& input_;
  const PartedTensor& output_;
  bool is_reachable_;         // whether peers read the input itself
  std::int64_t piece_bytes_;  // of a staged piece, the same on every rank
};

}  // namespace dtrain::comm
