// A stand-in for NCCL with what its source shows of version 2.28.9 and its manual does not say:
// when it writes handles, what an abort waits for. Nothing is communicated.
#pragma once

namespace dtrain::testing {

/// Until this is called, calls that need peers stay under way.
void let_peers_come();
/// No peers again, and nothing noted.
void reset_nccl();

/// What has been noted since.
struct NcclNotes {
  int made = 0;             ///< communicators
  int destroyed = 0;        ///< of them, at rest
  int aborted = 0;          ///< of them
  bool would_hang = false;  ///< memory was given back while another's kernel ran for ever
  int most_blocks = 0;      ///< that the kernels of the last one may have
  int freed_uses = 0;       ///< calls with a communicator whose memory was given back
};
[[nodiscard]] NcclNotes nccl_notes();

}  // namespace dtrain::testing
