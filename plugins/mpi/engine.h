// MPI progress engine: the only thread of a process that calls MPI.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "dtrain/base/clock.h"

namespace dtrain::mpi {

/// The MPI requests of one call.
using Requests = std::vector<MPI_Request>;

/// Throws: comm::TransportFailure{gone} with MPI's message, unless `code` is MPI_SUCCESS.
void check(int code);

/// Starts calls in FIFO order and progresses all of them concurrently, so that calls of different
/// groups may be ordered differently on each rank.
///
/// Threads: any.
class Engine {
 public:
  /// Runs in the MPI thread and adds a request for each operation that it starts. It must keep
  /// their buffers alive: after a failure the operations remain active until the process ends.
  using Begin = std::function<void(Requests& requests)>;

  Engine();
  /// Calls MPI_Finalize, and waits at most the finalize timeout for the other ranks. After a
  /// failure or during stack unwinding it skips MPI_Finalize, and mpirun ends the other ranks.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void set_finalize_timeout(std::chrono::milliseconds timeout) { finalize_timeout_ = timeout; }

  /// Runs `begin`, and returns when all operations that it started have ended.
  ///
  /// Throws: comm::TransportFailure: no_answer if the deadline passes; closed soon after `closed`
  ///         is set and wake() is called; gone for MPI errors.
  void run(Begin begin, const base::Deadline& deadline, const std::atomic<bool>& closed);
  /// Makes every run() check its `closed`.
  void wake() noexcept;

 private:
  struct Call;
  struct State;

  std::chrono::milliseconds finalize_timeout_{10'000};
  std::shared_ptr<State> state_;  // the thread's, too: it may outlive this object
  std::thread thread_;
};

}  // namespace dtrain::mpi
