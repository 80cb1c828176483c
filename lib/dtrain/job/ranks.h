// Runs this process's ranks (one, or several as threads); translates device errors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "dtrain/base/rank_env.h"
#include "dtrain/comm/world.h"
#include "dtrain/config/config.h"

namespace dtrain::job {

/// Advice appended to the messages of device errors.
struct DeviceAdvice {
  std::string if_full;  ///< for an error "out of memory"
  std::string if_lost;  ///< for an error "device lost"
};

/// Returns advice that names helpful settings which the configuration does not use yet.
[[nodiscard]] DeviceAdvice advice_for(const config::Config& config);

/// Runs `work`, translating errors of the named device.
///
/// Throws:  Error{device} if the device was lost, Error{memory} if it is out of memory,
///          Error{internal} for other device failures, naming the device; otherwise any exception
///          of `work`.
/// Threads: any.
void report_device_errors(const config::DeviceName& name, const DeviceAdvice& advice,
                          const std::function<void()>& work);

/// Connects to the other ranks. Collective: every rank of the job.
using JoinWorld = std::function<std::shared_ptr<comm::World>()>;

/// A rank's main function; returns the exit status. It calls `join` when it is ready to connect.
using RankBody = std::function<int(const base::RankEnv& env, const JoinWorld& join)>;

/// Runs `body` for each rank of this process; returns the status of rank 0, or of the process's
/// only rank. With --local-ranks each rank runs in its own thread, with --threads compute threads
/// and its own RankEnv; only rank 0 keeps the control connection to the launcher.
///
/// Throws: any exception of `body`. If ranks are threads, throws the first error after all ranks
///         have ended; an error specific to one rank names it.
[[nodiscard]] int run_ranks(const config::Config& config, const RankBody& body);

/// Sums `bytes` over the ranks of this process, which share one memory count.
///
/// Collective: every rank of the job.
[[nodiscard]] std::int64_t sum_of_process(const config::Config& config, comm::ProcessGroup& world,
                                          std::int64_t bytes);

}  // namespace dtrain::job
