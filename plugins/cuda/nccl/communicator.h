// A communicator of NCCL, none of whose calls blocks for longer than a deadline.
#pragma once

#include <nccl.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/comm/transport_failure.h"

namespace dtrain::cuda {

using comm::TransportFailure;

/// This rank's place among the ranks of a communicator.
struct CommunicatorRank {
  int rank;
  int size;
};

/// What a communicator is for. Messages hold multiprocessors of the GPU while they wait for a peer,
/// so that those of a communicator for them alone take few.
enum class CommunicatorUse { any, messages };

class Communicator;

/// Ends the kernels of all of them that run, and every later call. All are told to end before the
/// first gives back its memory: that waits for whatever runs on the GPU, which may be a kernel of
/// the second. It waits, too, for graphs that hold their calls, so those must be able to end.
///
/// Threads: any, holding nothing that the caller of one of them may wait for.
void abort_together(std::span<const std::shared_ptr<Communicator>> communicators) noexcept;

/// Non-blocking: a call that NCCL carries on with is polled until it has been put on its stream.
/// Of no use before join(), or unless it comes from split().
///
/// Throws:  TransportFailure: failed with NCCL's words; no_answer; closed after give_up().
/// Threads: one caller; give_up() and poll() from any thread.
class Communicator {
 public:
  Communicator() = default;
  /// Collective: the ranks that share `id`, on the current devices of their threads; once.
  void join(const ncclUniqueId& id, CommunicatorRank place, const base::Deadline& deadline,
            CommunicatorUse use = CommunicatorUse::any);
  /// The communicator of the ranks that give the same `color`, in the order of `key`; null where it
  /// is NCCL_SPLIT_NOCOLOR.
  ///
  /// Collective: all ranks of this communicator.
  [[nodiscard]] std::shared_ptr<Communicator> split(int color, int key,
                                                    const base::Deadline& deadline);
  /// Waits for what NCCL still does on the host, and gives up after a few seconds. Graphs that hold
  /// its calls end before.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Carries out `calls` as one group of NCCL's; they are on their stream when this returns.
  void enqueue(const std::function<ncclResult_t(ncclComm_t)>& calls,
               const base::Deadline& deadline);
  /// Registers memory from ncclMemAlloc, which calls may then use in place; once until forget().
  void remember(void* base, std::size_t bytes, const base::Deadline& deadline);
  /// The memory is about to be freed; calls that use it have ended. Threads: any.
  void forget(void* base) noexcept;
  /// What has failed in the background since; empty: nothing.
  [[nodiscard]] std::string poll() noexcept;
  /// Every later call fails. Returns what is to be aborted, if there is anything.
  [[nodiscard]] ncclComm_t give_up() noexcept;

 private:
  void require_handle() const;
  /// Waits until the call that returned `result` is over. lock: is held, and given up in between.
  void settle(ncclResult_t result, const base::Deadline& deadline,
              std::unique_lock<std::mutex>& lock);

  /// What NCCL has written so far; null: nothing.
  [[nodiscard]] ncclComm_t take_written();

  std::mutex mutex_;
  ncclComm_t handle_ = nullptr;  // null: not joined, or given up
  /// Where NCCL writes a communicator, also from threads of its own and after an abort: never used
  /// but by take_written().
  ncclComm_t written_ = nullptr;
  bool is_given_up_ = false;
  std::map<void*, void*> registrations_;  // by the memory's first byte
};

}  // namespace dtrain::cuda
