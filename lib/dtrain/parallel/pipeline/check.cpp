#include "dtrain/parallel/pipeline/check.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "dtrain/base/error.h"
#include "dtrain/parallel/pipeline/simulate.h"

namespace dtrain::parallel {
namespace {

using Kind = ActionKind;

template <typename... Args>
[[noreturn]] void refuse(std::int64_t stage, fmt::format_string<Args...> format, Args&&... args) {
  base::fail(base::ErrorKind::internal, "pipeline schedule: stage {}: {}", stage,
             fmt::format(format, std::forward<Args>(args)...));
}

// Reads one stage's list from its beginning to its end.
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
  [[nodiscard]] bool was_done(const StageAction& action) const {
    return done_.contains({action.kind, action.chunk, action.microbatch});
  }

  void require(const StageAction& action) const {
    if (!was_done(action)) refuse(stage_, "there is no {}", describe(action));
  }

  // `action` must not come before `earlier`.
  void require_before(const StageAction& earlier, const StageAction& action) const {
    if (!was_done(earlier)) refuse(stage_, "{} before {}", describe(action), describe(earlier));
  }

  void add(const StageAction& action) {
    if (action.chunk < 0 || action.chunk >= shape_.chunks() ||
        action.microbatch < MicrobatchId(0) ||
        action.microbatch >= MicrobatchId(shape_.microbatches)) {
      refuse(stage_, "{} is none of its own", describe(action));
    }
    is_compute(action.kind) ? check_pass(action) : check_message(action);
    if (!done_.insert({action.kind, action.chunk, action.microbatch}).second) {
      refuse(stage_, "{} twice", describe(action));
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
    if (known != message) refuse(stage_, "{} has no other end", describe(message));
    if (is_send) require_before(pass, message);
  }

  const PipelineShape& shape_;
  std::int64_t stage_;
  std::set<std::tuple<Kind, std::int64_t, MicrobatchId>> done_;
};

// Messages of one kind from one stage to another: what they are of, in order.
struct Channel {
  Kind sends;  // send_activation or send_gradient
  std::int64_t from;
  std::int64_t to;
  auto operator<=>(const Channel&) const = default;
};
struct Message {
  std::int64_t receiving_part;
  MicrobatchId microbatch;
  bool operator==(const Message&) const = default;
};
using Traffic = std::map<Channel, std::vector<Message>>;

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
  for (const auto& [channel, messages] : sent) {
    if (received[channel] == messages) continue;
    refuse(channel.to, "receives {} from stage {} in another order than they are sent",
           channel.sends == Kind::send_activation ? "activations" : "gradients", channel.from);
  }
}

}  // namespace

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
  const auto num_stages = static_cast<std::int64_t>(schedules.size());
  if (num_stages != shape.stages) {
    base::fail(base::ErrorKind::internal, "pipeline schedule: {} lists for {} stages", num_stages,
               shape.stages);
  }
  for (std::int64_t stage = 0; stage < num_stages; ++stage) {
    StageChecker(shape, stage).check(schedules[static_cast<std::size_t>(stage)]);
  }
  check_order_of_messages(shape, schedules);
  (void)simulate(shape, schedules);  // throws where stages wait for each other
  std::vector<InFlight> kept;
  for (const StageSchedule& schedule : schedules) kept.push_back(in_flight(shape, schedule));
  return kept;
}

}  // namespace dtrain::parallel
