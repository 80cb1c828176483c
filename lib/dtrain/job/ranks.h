// The ranks that this process is: one of a launched job, or several as threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "dtrain/base/rank_env.h"
#include "dtrain/comm/world.h"
#include "dtrain/config/config.h"

namespace dtrain::job {

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
