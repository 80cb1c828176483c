// The ranks that this process is, one of a launched job or several as threads, and what errors of
// their devices mean.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "dtrain/base/rank_env.h"
#include "dtrain/comm/world.h"
#include "dtrain/config/config.h"

namespace dtrain::job {

/// What to do about a device, as the end of a message.
struct DeviceAdvice {
  std::string if_full;
  std::string if_lost;
};

/// For a rank: settings that help and are not in use.
[[nodiscard]] DeviceAdvice advice_for(const config::Config& config);

/// Runs `work`, which computes on the device of this name.
///
/// Throws:  where the device fails, naming it: Error{device} if it was lost, Error{memory} if it is
///          full, else Error{internal}. Else what `work` throws.
/// Threads: any.
void report_device_errors(const config::DeviceName& name, const DeviceAdvice& advice,
                          const std::function<void()>& work);

/// Meets the other ranks. Collective: every rank of the job.
using JoinWorld = std::function<std::shared_ptr<comm::World>()>;

/// A rank's work from its start to its end; returns the exit status. It joins the world when it
/// is ready to.
using RankBody = std::function<int(const base::RankEnv& env, const JoinWorld& join)>;

/// Runs `body` as each rank of this process and returns rank 0's status, or that of the one rank
/// it is. With --local-ranks each runs in a thread of its own with --threads threads for its
/// arithmetic; the environment of each says which rank it is, and rank 0 alone has the line to the
/// launcher.
///
/// Throws: what `body` throws. Of ranks that are threads it is the first error, when all have come
///         to their ends; one that not every rank would have met names its rank.
[[nodiscard]] int run_ranks(const config::Config& config, const RankBody& body);

/// The sum of `bytes` over the ranks of this process, which count their memory together.
///
/// Collective: every rank of the job.
[[nodiscard]] std::int64_t sum_of_process(const config::Config& config, comm::ProcessGroup& world,
                                          std::int64_t bytes);

}  // namespace dtrain::job
