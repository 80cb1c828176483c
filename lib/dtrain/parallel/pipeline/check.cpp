#include "dtrain/parallel/pipeline/check.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::parallel {
namespace {

class ScheduleSimulator {
 public:
  ScheduleSimulator(const PipelineShape& shape, const std::vector<StageSchedule>& schedules,
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
    // Stages interact only through messages, so they may advance in any order.
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

  // Returns the send time of a microbatch's message to this part; empty until it is sent.
  Time& sent(std::vector<Time>& messages, std::int64_t part, MicrobatchId microbatch) {
    return messages.at(static_cast<std::size_t>(part * shape_.microbatches + microbatch.value()));
  }

  // Executes the stage's next action; false if it has none or is blocked.
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
      waiting += fmt::format("{}stage {} is blocked at the {}", waiting.empty() ? "" : ", ", stage,
                             describe(schedules_[stage][positions_[stage]]));
    }
    if (waiting.empty()) return;
    base::fail(base::ErrorKind::internal, "pipeline schedule: deadlock: {}", waiting);
  }

  const PipelineShape& shape_;
  const std::vector<StageSchedule>& schedules_;
  PassDurations durations_;
  std::vector<std::size_t> positions_;  // by stage: index of the next action
  std::vector<double> clocks_;          // by stage
  std::vector<Time> activations_;       // send times by receiving part and microbatch
  std::vector<Time> gradients_;         // likewise
  Simulation result_;
};

using Kind = ActionKind;

template <typename... Args>
[[noreturn]] void fail_schedule(std::int64_t stage, fmt::format_string<Args...> format,
                                Args&&... args) {
  base::fail(base::ErrorKind::internal, "pipeline schedule: stage {}: {}", stage,
             fmt::format(format, std::forward<Args>(args)...));
}

// Checks one stage's schedule in order.
class StageChecker {
 public:
  StageChecker(const PipelineShape& shape, std::int64_t stage) : shape_(shape), stage_(stage) {}

  void check(const StageSchedule& schedule) {
    for (const StageAction& action : schedule) add(action);
    for (std::int64_t chunk = 0; chunk < shape_.chunks(); ++chunk) {
      for (const auto microbatch : base::first_ids<MicrobatchId>(shape_.microbatches)) {
        for (const Kind kind : {Kind::forward, Kind::backward}) {
          const StageAction pass{kind, chunk, microbatch};
          require(pass);
          if (const auto send = send_after(shape_, stage_, pass)) require(*send);
        }
      }
    }
  }

 private:
  [[nodiscard]] bool was_seen(const StageAction& action) const {
    return seen_.contains({action.kind, action.chunk, action.microbatch});
  }

  void require(const StageAction& action) const {
    if (!was_seen(action)) fail_schedule(stage_, "{} is missing", describe(action));
  }

  // Requires that `earlier` precedes `action`.
  void require_before(const StageAction& earlier, const StageAction& action) const {
    if (!was_seen(earlier))
      fail_schedule(stage_, "{} precedes {}", describe(action), describe(earlier));
  }

  void add(const StageAction& action) {
    if (action.chunk < 0 || action.chunk >= shape_.chunks() ||
        action.microbatch < MicrobatchId(0) ||
        action.microbatch >= MicrobatchId(shape_.microbatches)) {
      fail_schedule(stage_, "{} does not belong to this stage", describe(action));
    }
    is_compute(action.kind) ? check_pass(action) : check_message(action);
    if (!seen_.insert({action.kind, action.chunk, action.microbatch}).second) {
      fail_schedule(stage_, "{} occurs twice", describe(action));
    }
  }

  void check_pass(const StageAction& pass) const {
    if (const auto receive = receive_before(shape_, stage_, pass)) require_before(*receive, pass);
    if (pass.kind == Kind::forward) return;
    require_before({Kind::forward, pass.chunk, pass.microbatch}, pass);
    if (pass.microbatch > MicrobatchId(0)) {
      require_before({Kind::backward, pass.chunk, pass.microbatch - 1}, pass);
    }
  }

  void check_message(const StageAction& message) const {
    const bool of_activation =
        message.kind == Kind::send_activation || message.kind == Kind::recv_activation;
    const bool is_send =
        message.kind == Kind::send_activation || message.kind == Kind::send_gradient;
    const StageAction pass{of_activation ? Kind::forward : Kind::backward, message.chunk,
                           message.microbatch};
    const auto known =
        is_send ? send_after(shape_, stage_, pass) : receive_before(shape_, stage_, pass);
    if (known != message)
      fail_schedule(stage_, "{} has no matching send or receive", describe(message));
    if (is_send) require_before(pass, message);
  }

  const PipelineShape& shape_;
  std::int64_t stage_;
  std::set<std::tuple<Kind, std::int64_t, MicrobatchId>> seen_;
};

// Identifies the ordered messages of one kind between two stages.
struct Route {
  Kind sends;  // send_activation or send_gradient
  std::int64_t from;
  std::int64_t to;
  auto operator<=>(const Route&) const = default;
};
struct Message {
  std::int64_t receiving_part;
  MicrobatchId microbatch;
  bool operator==(const Message&) const = default;
};
using Traffic = std::map<Route, std::vector<Message>>;

void check_order_of_messages(const PipelineShape& shape,
                             const std::vector<StageSchedule>& schedules) {
  Traffic sent, received;
  for (std::size_t index = 0; index < schedules.size(); ++index) {
    const std::int64_t stage = static_cast<std::int64_t>(index);
    for (const StageAction& action : schedules[index]) {
      if (is_compute(action.kind)) continue;
      const Peer peer = peer_of(shape, stage, action);
      if (action.kind == Kind::send_activation || action.kind == Kind::send_gradient) {
        sent[{action.kind, stage, peer.stage}].push_back(
            {shape.part(peer.stage, peer.chunk), action.microbatch});
      } else {
        const Kind sends =
            action.kind == Kind::recv_activation ? Kind::send_activation : Kind::send_gradient;
        received[{sends, peer.stage, stage}].push_back(
            {shape.part(stage, action.chunk), action.microbatch});
      }
    }
  }
  for (const auto& [route, messages] : sent) {
    if (received[route] == messages) continue;
    fail_schedule(route.to, "receives {} from stage {} in a different order than they are sent",
                  route.sends == Kind::send_activation ? "activations" : "gradients", route.from);
  }
}

}  // namespace

Simulation simulate(const PipelineShape& shape, const std::vector<StageSchedule>& schedules,
                    const PassDurations& durations) {
  return ScheduleSimulator(shape, schedules, durations).run();
}

InFlight in_flight(const PipelineShape& shape, const StageSchedule& schedule) {
  InFlight peak{.by_chunk = std::vector<std::int64_t>(static_cast<std::size_t>(shape.chunks()))};
  std::int64_t total = 0;
  std::vector<std::int64_t> now(peak.by_chunk.size());
  for (const StageAction& action : schedule) {
    if (!is_compute(action.kind)) continue;
    const std::int64_t change = action.kind == ActionKind::forward ? 1 : -1;
    const auto chunk = static_cast<std::size_t>(action.chunk);
    total += change;
    now[chunk] += change;
    peak.activations = std::max(peak.activations, total);
    peak.by_chunk[chunk] = std::max(peak.by_chunk[chunk], now[chunk]);
  }
  return peak;
}

std::vector<InFlight> check_pipeline_schedule(const PipelineShape& shape,
                                              const std::vector<StageSchedule>& schedules) {
  const auto num_stages = std::ssize(schedules);
  if (num_stages != shape.stages) {
    base::fail(base::ErrorKind::internal, "pipeline schedule: found {} action lists for {} stages",
               num_stages, shape.stages);
  }
  for (std::int64_t stage = 0; stage < num_stages; ++stage) {
    StageChecker(shape, stage).check(schedules[static_cast<std::size_t>(stage)]);
  }
  check_order_of_messages(shape, schedules);
  (void)simulate(shape, schedules);  // throws on deadlock
  std::vector<InFlight> kept;
  for (const StageSchedule& schedule : schedules) kept.push_back(in_flight(shape, schedule));
  return kept;
}

}  // namespace dtrain::parallel
