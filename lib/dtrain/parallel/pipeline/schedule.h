// Pipeline parallelism: the model is cut into parts of neighbouring blocks, each rank of the
// pipeline (a stage) holds its own, and microbatches flow through them.
//
// This folder decides, as plain data, what each stage does and in which order. Nothing here runs
// anything: the step engine executes the lists. Read on in this order:
//
//   schedule.h       what a list consists of, its messages included
//   compute_order.h  the idea: in which order a stage runs forward and backward passes
//   simulate.h       when each pass begins and ends, and how long stages wait: the bubble
//   check.h          that a list can be executed at all, and how much it keeps in memory
//   balance.h        which blocks make up which part
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/layout.h"
#include "dtrain/parallel/action.h"

namespace dtrain::parallel {

using config::PipelineKind;

/// With S stages and V chunks on each of them the model has S * V parts. Chunk c of stage s is part
/// c * S + s, so that every part's successor is on the next stage, around from the last to the
/// first.
struct PipelineShape {
  std::int64_t stages = 1;
  std::int64_t microbatches = 1;  ///< of a step, each of which runs through all parts
  config::PipelineSetting order = {};

  /// Returns the number of parts on each stage.
  [[nodiscard]] std::int64_t chunks() const { return order.chunks; }
  [[nodiscard]] std::int64_t num_parts() const { return stages * chunks(); }
  [[nodiscard]] std::int64_t part(std::int64_t stage, std::int64_t chunk) const {
    return chunk * stages + stage;
  }
};

/// kind: a pass or a message.
struct StageAction {
  ActionKind kind = ActionKind::forward;
  std::int64_t chunk = 0;  ///< of this stage
  MicrobatchId microbatch = {};

  bool operator==(const StageAction&) const = default;
};

/// One stage's actions in a step, in order. Sends do not block; receives are posted, and the pass
/// that needs one waits for it. Messages of one kind between one pair of stages arrive in the order
/// in which they were sent, which is the order of the receives.
using StageSchedule = std::vector<StageAction>;

/// "forward of microbatch 3", with its chunk where a stage has several.
[[nodiscard]] std::string describe(const StageAction& action);

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

/// The list of one stage.
///
/// Throws: Error{usage} where microbatches or stages do not fit an interleaved schedule.
[[nodiscard]] StageSchedule make_stage_schedule(const PipelineShape& shape, std::int64_t stage);
/// The lists of all stages.
[[nodiscard]] std::vector<StageSchedule> make_pipeline_schedule(const PipelineShape& shape);

}  // namespace dtrain::parallel
