// The messages that a stage sends and receives between its passes.
#pragma once

#include <cstdint>
#include <optional>

#include "dtrain/parallel/pipeline/schedule.h"

namespace dtrain::parallel {

/// A stage's list, from the order of its passes. Each message is sent right after the pass that
/// made it. Its receive is posted one pass early: the message travels while the pass before the one
/// that needs it computes, and no more than one activation and one gradient wait ahead of time.
[[nodiscard]] StageSchedule with_messages(const PipelineShape& shape, std::int64_t stage,
                                          const StageSchedule& order);

/// The receive that a pass of this stage needs; nothing where the model begins or, for a backward,
/// ends.
[[nodiscard]] std::optional<StageAction> receive_before(const PipelineShape& shape,
                                                        std::int64_t stage,
                                                        const StageAction& pass);
/// The send of what the pass gives; nothing where the model ends or, for a backward, begins.
[[nodiscard]] std::optional<StageAction> send_after(const PipelineShape& shape, std::int64_t stage,
                                                    const StageAction& pass);

/// Where a message goes to or comes from: the stage, and the chunk of it.
struct Peer {
  std::int64_t stage = 0;
  std::int64_t chunk = 0;
};

/// message: a send or receive of `stage`.
[[nodiscard]] Peer peer_of(const PipelineShape& shape, std::int64_t stage,
                           const StageAction& message);

}  // namespace dtrain::parallel
