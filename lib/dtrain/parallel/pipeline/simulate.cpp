#include "dtrain/parallel/pipeline/simulate.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::parallel {
namespace {

class Execution {
 public:
  Execution(const PipelineShape& shape, const std::vector<StageSchedule>& schedules,
            const PassDurations& durations)
      : shape_(shape),
        schedules_(schedules),
        durations_(durations),
        positions_(schedules.size()),
        clocks_(schedules.size()),
        activations_(static_cast<std::size_t>(shape.num_parts() * shape.microbatches)),
        gradients_(activations_.size()) {
    result_.stages.resize(schedules.size());
  }

  Simulation run() {
    // Stages do not influence each other but by messages, so their turns may come in any order.
    for (bool advances = true; advances;) {
      advances = false;
      for (std::size_t stage = 0; stage < schedules_.size(); ++stage) {
        while (step(stage)) advances = true;
      }
    }
    require_end();
    result_.duration = *std::max_element(clocks_.begin(), clocks_.end());
    for (const auto& passes : result_.stages) {
      double busy = 0;
      for (const TimedPass& pass : passes) busy += pass.end - pass.begin;
      result_.bubble += (result_.duration - busy) / busy;
    }
    result_.bubble /= static_cast<double>(result_.stages.size());
    return std::move(result_);
  }

 private:
  using Time = std::optional<double>;

  // When the message of a microbatch that this part receives was sent; nothing before that.
  Time& sent(std::vector<Time>& messages, std::int64_t part, MicrobatchId microbatch) {
    return messages.at(static_cast<std::size_t>(part * shape_.microbatches + microbatch.value()));
  }

  // Executes the stage's next action; false where it has none, or has to wait.
  bool step(std::size_t stage) {
    if (positions_[stage] == schedules_[stage].size()) return false;
    const StageAction& action = schedules_[stage][positions_[stage]];
    if (is_compute(action.kind)) {
      if (!run_pass(stage, action)) return false;
    } else if (action.kind == ActionKind::send_activation ||
               action.kind == ActionKind::send_gradient) {
      const Peer peer = peer_of(shape_, static_cast<std::int64_t>(stage), action);
      auto& messages = action.kind == ActionKind::send_activation ? activations_ : gradients_;
      sent(messages, shape_.part(peer.stage, peer.chunk), action.microbatch) = clocks_[stage];
    }
    ++positions_[stage];
    return true;
  }

  bool run_pass(std::size_t stage, const StageAction& pass) {
    const std::int64_t number = static_cast<std::int64_t>(stage);
    const bool is_forward = pass.kind == ActionKind::forward;
    double begin = clocks_[stage];
    if (receive_before(shape_, number, pass)) {
      const Time arrival = sent(is_forward ? activations_ : gradients_,
                                shape_.part(number, pass.chunk), pass.microbatch);
      if (!arrival) return false;
      begin = std::max(begin, *arrival);
    }
    clocks_[stage] = begin + (is_forward ? durations_.forward : durations_.backward);
    result_.stages[stage].push_back({pass, begin, clocks_[stage]});
    return true;
  }

  void require_end() const {
    std::string waiting;
    for (std::size_t stage = 0; stage < schedules_.size(); ++stage) {
      if (positions_[stage] == schedules_[stage].size()) continue;
      waiting += fmt::format("{}stage {} waits before the {}", waiting.empty() ? "" : ", ", stage,
                             describe(schedules_[stage][positions_[stage]]));
    }
    if (waiting.empty()) return;
    base::fail(base::ErrorKind::internal, "pipeline schedule: deadlock: {}", waiting);
  }

  const PipelineShape& shape_;
  const std::vector<StageSchedule>& schedules_;
  PassDurations durations_;
  std::vector<std::size_t> positions_;  // by stage: its next action
  std::vector<double> clocks_;          // by stage
  std::vector<Time> activations_;       // by part that receives and microbatch
  std::vector<Time> gradients_;         // the same
  Simulation result_;
};

}  // namespace

Simulation simulate(const PipelineShape& shape, const std::vector<StageSchedule>& schedules,
                    const PassDurations& durations) {
  return Execution(shape, schedules, durations).run();
}

}  // namespace dtrain::parallel
