// A stand-in for NCCL that models undocumented behaviour of version 2.28.9, from its source:
// when it writes handles, and what an abort waits for. It communicates nothing.
#pragma once

namespace dtrain::testing {

/// Makes peers arrive; until then, calls that need peers stay in progress.
void let_peers_come();
/// Resets the model: no peers, counters zero.
void reset_nccl();

/// Counters since the last reset.
struct NcclNotes {
  int made = 0;             ///< communicators created
  int destroyed = 0;        ///< communicators destroyed while idle
  int aborted = 0;          ///< communicators aborted
  bool would_hang = false;  ///< memory was freed while another's kernel ran forever
  int most_blocks = 0;      ///< block limit of the last communicator's kernels
  int freed_uses = 0;       ///< calls with a freed communicator
};
[[nodiscard]] NcclNotes nccl_notes();

}  // namespace dtrain::testing
