// Pipeline parallelism: the model is cut into parts of neighbouring blocks, each rank of the
// pipeline (a stage) holds its own, and microbatches flow through them.
//
// This folder decides, as plain data, what each stage does and in which order. Nothing here runs
// anything: the step engine executes the lists. Read on in this order:
//
//   schedule.h  what a list consists of: passes, in an order of each kind of schedule, and messages
//   check.h     that a list can be executed at all, how much it keeps in memory, when each pass
//               begins and ends, and how long stages wait: the bubble
//   balance.h   which blocks make up which part
//
// The idea of each schedule is the order in which one stage runs its forward and backward passes.
//
// Take 4 stages and 8 microbatches. Time runs to the right, F3 is the forward of microbatch 3, and
// a backward (B) takes twice as long as a forward.
//
// GPipe runs all forwards, then all backwards:
//
//   stage 0  F0 F1 F2 F3 F4 F5 F6 F7 .. .. .. .. .. .. .. .. .. B0--- B1--- B2--- ...
//   stage 1  .. F0 F1 F2 F3 F4 F5 F6 F7 .. .. .. .. .. .. B0--- B1--- B2--- ...
//   stage 2  .. .. F0 F1 F2 F3 F4 F5 F6 F7 .. .. .. B0--- B1--- B2--- ...
//   stage 3  .. .. .. F0 F1 F2 F3 F4 F5 F6 F7 B0--- B1--- B2--- ...
//
// A stage waits while the first microbatch has not reached it, and again for the last gradients:
// the bubble, (stages - 1) forwards and backwards, whatever the number of microbatches. Worse, when
// the first backward begins, every stage keeps the activations of all 8 microbatches.
//
// 1F1B runs a microbatch's backward as soon as its gradient can be there:
//
//   stage 0  F0 F1 F2 F3 .. .. .. .. .. .. B0--- F4 B1--- F5 B2--- F6 B3--- F7 B4--- .. B5--- ...
//   stage 1  .. F0 F1 F2 .. .. .. .. B0--- F3 B1--- F4 B2--- F5 B3--- F6 B4--- F7 B5--- .. B6---
//   stage 2  .. .. F0 F1 .. .. B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4--- F6 B5--- F7 B6--- .. B7---
//   stage 3  .. .. .. F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- F6 B6--- F7 B7---
//
//   warm-up    The last stage has a gradient right after its first forward; each stage before it
//              runs one more forward until that gradient has come back to it.
//   steady     From then on one forward and one backward in turn: each backward frees the
//              activations that the next forward takes.
//   cool-down  No microbatch is left to begin: the backwards of those in flight.
//
// The bubble is the same as GPipe's, but stage s never keeps more than stages - s microbatches.
//
// Interleaved 1F1B makes the bubble itself smaller. Each stage holds V small chunks of the model
// instead of one large one, so that filling and draining the pipeline takes steps of 1/V the
// length: the bubble shrinks by V, for V times the messages and more activations in flight.
// Microbatches go through in groups of as many as there are stages: a group through the first
// chunks of all stages, then, while the next stages still work on it, through the second ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/values/layout.h"
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

/// The forwards and backwards of a stage, in order. Backwards of a chunk come in the order of their
/// microbatches.
///
/// Source: Huang et al., GPipe (2019); Narayanan et al., Memory-Efficient Pipeline-Parallel DNN
///         Training (2021) for 1F1B; Narayanan et al., Efficient Large-Scale Language Model
///         Training on GPU Clusters Using Megatron-LM (2021), section 2.2, for interleaving.
[[nodiscard]] StageSchedule compute_order(const PipelineShape& shape, std::int64_t stage);

/// The list of one stage.
///
/// Throws: Error{usage} where microbatches or stages do not fit an interleaved schedule.
[[nodiscard]] StageSchedule make_stage_schedule(const PipelineShape& shape, std::int64_t stage);
/// The lists of all stages.
[[nodiscard]] std::vector<StageSchedule> make_pipeline_schedule(const PipelineShape& shape);

}  // namespace dtrain::parallel
