// Pipeline schedules. The model is cut into parts of consecutive blocks. Each pipeline rank, called
// a stage, holds one or more parts, and microbatches flow through them.
//
// This folder computes, as plain data, the ordered actions of each stage; the step engine executes
// them. Read in this order:
//
//   schedule.h  actions of a schedule: the ordered passes that define it, and messages
//   check.h     validation, activations in flight, simulated times and the bubble
//   balance.h   assignment of blocks to parts
//
// A schedule is defined by the order in which one stage runs its forward and backward passes.
//
// Example: 4 stages and 8 microbatches. Time runs to the right, F3 is the forward pass of
// microbatch 3, and a backward pass (B) takes twice as long as a forward pass.
//
// GPipe runs all forward passes, then all backward passes:
//
//   stage 0  F0 F1 F2 F3 F4 F5 F6 F7 .. .. .. .. .. .. .. .. .. B0--- B1--- B2--- ...
//   stage 1  .. F0 F1 F2 F3 F4 F5 F6 F7 .. .. .. .. .. .. B0--- B1--- B2--- ...
//   stage 2  .. .. F0 F1 F2 F3 F4 F5 F6 F7 .. .. .. B0--- B1--- B2--- ...
//   stage 3  .. .. .. F0 F1 F2 F3 F4 F5 F6 F7 B0--- B1--- B2--- ...
//
// A stage is idle until the first microbatch reaches it, and again until the first gradients
// return: this bubble lasts (stages - 1) forward and backward passes, independent of the number of
// microbatches. Worse, when the first backward pass begins, every stage holds the activations of
// all 8 microbatches.
//
// 1F1B runs a microbatch's backward pass as soon as its gradient can arrive:
//
//   stage 0  F0 F1 F2 F3 .. .. .. .. .. .. B0--- F4 B1--- F5 B2--- F6 B3--- F7 B4--- .. B5--- ...
//   stage 1  .. F0 F1 F2 .. .. .. .. B0--- F3 B1--- F4 B2--- F5 B3--- F6 B4--- F7 B5--- .. B6---
//   stage 2  .. .. F0 F1 .. .. B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4--- F6 B5--- F7 B6--- .. B7---
//   stage 3  .. .. .. F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- F6 B6--- F7 B7---
//
//   warm-up    The last stage has a gradient right after its first forward pass. Each earlier stage
//              runs one more forward pass than the next stage before its first gradient arrives.
//   steady     Forward and backward passes alternate: each backward pass frees the activations
//              that the next forward pass needs.
//   cool-down  Backward passes of the microbatches still in flight.
//
// The bubble is the same as GPipe's, but stage s holds at most stages - s microbatches.
//
// Interleaved 1F1B shrinks the bubble. Each stage holds V small chunks of the model instead of one
// large one, so filling and draining the pipeline takes 1/V of the time; the price is V times the
// messages and more activations in flight. Microbatches pass in groups of `stages`: a group passes
// through the first chunks of all stages, then through the second chunks, and so on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/values/layout.h"
#include "dtrain/parallel/action.h"

namespace dtrain::parallel {

using config::PipelineKind;

/// Sizes of a pipeline. With S stages and V chunks per stage the model has S * V parts. Chunk c of
/// stage s is part c * S + s, so every part's successor is on the next stage, cyclically.
struct PipelineShape {
  std::int64_t stages = 1;
  std::int64_t microbatches = 1;  ///< per step
  config::PipelineSetting order = {};

  /// Returns the number of parts per stage.
  [[nodiscard]] std::int64_t chunks() const { return order.chunks; }
  [[nodiscard]] std::int64_t num_parts() const { return stages * chunks(); }
  [[nodiscard]] std::int64_t part(std::int64_t stage, std::int64_t chunk) const {
    return chunk * stages + stage;
  }
};

/// One action of a stage. kind: a pass or a message.
struct StageAction {
  ActionKind kind = ActionKind::forward;
  std::int64_t chunk = 0;  ///< chunk of this stage
  MicrobatchId microbatch = {};

  bool operator==(const StageAction&) const = default;
};

/// One stage's actions in a step, in order. Sends do not block. Receives are posted, and the pass
/// that needs the message waits for it. Messages of one kind between two stages match receives in
/// order.
using StageSchedule = std::vector<StageAction>;

/// Returns a text such as "forward of chunk 0, microbatch 3".
[[nodiscard]] std::string describe(const StageAction& action);

/// Returns the receive that a pass of this stage needs; empty for a forward pass of the first part
/// or a backward pass of the last.
[[nodiscard]] std::optional<StageAction> receive_before(const PipelineShape& shape,
                                                        std::int64_t stage,
                                                        const StageAction& pass);
/// Returns the send of a pass's result; empty for a forward pass of the last part or a backward
/// pass of the first.
[[nodiscard]] std::optional<StageAction> send_after(const PipelineShape& shape, std::int64_t stage,
                                                    const StageAction& pass);

/// The other end of a message.
struct Peer {
  std::int64_t stage = 0;
  std::int64_t chunk = 0;
};

/// Returns the peer of a message. message: a send or receive of `stage`.
[[nodiscard]] Peer peer_of(const PipelineShape& shape, std::int64_t stage,
                           const StageAction& message);

/// Returns a stage's forward and backward passes in order. Backward passes of a chunk are in
/// microbatch order.
///
/// Source: Huang et al., GPipe (2019); Narayanan et al., Memory-Efficient Pipeline-Parallel DNN
///         Training (2021) for 1F1B; Narayanan et al., Efficient Large-Scale Language Model
///         Training on GPU Clusters Using Megatron-LM (2021), section 2.2, for interleaving.
[[nodiscard]] StageSchedule compute_order(const PipelineShape& shape, std::int64_t stage);

/// Returns the schedule of one stage.
///
/// Throws: Error{usage} if microbatches or stages do not fit an interleaved schedule.
[[nodiscard]] StageSchedule make_stage_schedule(const PipelineShape& shape, std::int64_t stage);
/// Returns the schedules of all stages.
[[nodiscard]] std::vector<StageSchedule> make_pipeline_schedule(const PipelineShape& shape);

}  // namespace dtrain::parallel
