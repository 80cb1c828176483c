// A non-blocking NCCL communicator whose calls all have a deadline.
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

/// This rank's index in a communicator, and its size.
struct CommunicatorRank {
  int rank;
  int size;
};

/// The purpose of a communicator. Sends and receives occupy multiprocessors of the GPU while they
/// wait for a peer, so a communicator for messages only is limited to few.
enum class CommunicatorUse { any, messages };

class Communicator;

/// Aborts the running kernels of all communicators; later calls fail. Sets the abort flags of all
/// before it frees the memory of any: freeing waits for everything that runs on the GPU, which may be
/// a kernel of another communicator. It also waits for graphs that contain their calls, so these must
/// be able to finish.
///
/// Threads: any; the caller must hold no lock that users of the communicators may wait for.
void abort_together(std::span<const std::shared_ptr<Communicator>> communicators) noexcept;

/// Wraps a non-blocking NCCL communicator: calls that NCCL continues in the background are polled
/// until they are on their stream. Usable after join(), or if returned by split().
///
/// Throws:  TransportFailure: failed, with NCCL's message; no_answer; closed after detach().
/// Threads: one caller; detach() and poll() from any thread.
class Communicator {
 public:
  Communicator() = default;
  /// Connects the ranks that share `id`, on the current devices of their threads. Call once.
  ///
  /// Collective: these ranks.
  void join(const ncclUniqueId& id, CommunicatorRank place, const base::Deadline& deadline,
            CommunicatorUse use = CommunicatorUse::any);
  /// Returns a communicator of the ranks that pass the same `color`, ordered by `key`; null if color
  /// is NCCL_SPLIT_NOCOLOR.
  ///
  /// Collective: all ranks of this communicator.
  [[nodiscard]] std::shared_ptr<Communicator> split(int color, int key,
                                                    const base::Deadline& deadline);
  /// Waits a few seconds for NCCL's host work, then aborts. REQUIRES: graphs that contain its calls
  /// are destroyed.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Runs `calls` as one NCCL group; they are on their stream when this returns.
  void enqueue(const std::function<ncclResult_t(ncclComm_t)>& calls,
               const base::Deadline& deadline);
  /// Registers memory from ncclMemAlloc, so that calls use it in place. Call once per memory, until
  /// deregister_memory().
  void register_memory(void* base, std::size_t bytes, const base::Deadline& deadline);
  /// Deregisters memory before it is freed. REQUIRES: calls that use it have completed. Threads: any.
  void deregister_memory(void* base) noexcept;
  /// Returns the message of an asynchronous failure; empty if there is none.
  [[nodiscard]] std::string poll() noexcept;
  /// Makes every later call fail. Returns the handle to abort; null if there is none.
  [[nodiscard]] ncclComm_t detach() noexcept;

 private:
  void require_handle() const;
  /// Waits until the call that returned `result` has finished. lock: held; released while sleeping.
  void wait_until_done(ncclResult_t result, const base::Deadline& deadline,
                       std::unique_lock<std::mutex>& lock);

  /// Takes the handle that NCCL has written; null if it has not.
  [[nodiscard]] ncclComm_t take_written();

  std::mutex mutex_;
  ncclComm_t handle_ = nullptr;  // null if not joined, or detached
  /// NCCL writes a new handle here, possibly from its own threads and after an abort; only
  /// take_written() may access it.
  ncclComm_t written_ = nullptr;
  bool is_detached_ = false;
  std::map<void*, void*> registrations_;  // by base address
};

}  // namespace dtrain::cuda
