// The one thread of a process that calls MPI.
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

using Requests = std::vector<MPI_Request>;

/// Throws: comm::TransportFailure{gone} with MPI's words, unless `code` is MPI_SUCCESS.
void check(int code);

/// Begins calls in the order in which they come and lets all that are under way proceed together,
/// so that those of several groups may come in another order on each rank.
///
/// Threads: any.
class Engine {
 public:
  /// Runs in the thread of MPI and adds a request for each operation that it begins. It must keep
  /// alive what these use: after a failure they stay under way as long as the process.
  using Begin = std::function<void(Requests& requests)>;

  Engine();
  /// Ends MPI with the other ranks, for which it waits at most `patience`; after a failure, or
  /// while an exception is under way, at once and without them: mpirun ends those.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }

  /// Returns when all that `begin` has begun has ended.
  ///
  /// Throws: comm::TransportFailure: no_answer when the deadline passes; closed soon after `closed`
  ///         is set and wake() called; gone for MPI's errors.
  void run(Begin begin, const base::Deadline& deadline, const std::atomic<bool>& closed);
  /// Lets every run() look at its `closed`.
  void wake() noexcept;

 private:
  struct Call;
  struct State;

  std::chrono::milliseconds patience_{10'000};
  std::shared_ptr<State> state_;  // the thread's, too: it may outlive this object
  std::thread thread_;
};

}  // namespace dtrain::mpi
