// Tests which streams of a pipeline stage may share a hardware queue of a GPU, in which a waiting
// entry blocks those behind it.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "dtrain/parallel/pipeline/schedule.h"

namespace dtrain::parallel::pipeline_queues_test {
namespace {

enum Stream : std::size_t { compute, recv_act, recv_grad, send_act, send_grad };
using Queues = std::array<int, 5>;  // by stream

Stream stream_of(ActionKind kind) {
  constexpr Stream kStreams[] = {compute, compute, send_act, recv_act, send_grad, recv_grad};
  return kStreams[static_cast<int>(kind)];
}

// Simulates the queues of all stages, to which the hosts submit without waiting. A message is a
// kernel on both sides, and neither ends before both run.
class Gpus {
 public:
  Gpus(const PipelineShape& shape, const Queues& queues) : shape_(shape), queues_(queues) {
    for (std::int64_t stage = 0; stage < shape.stages; ++stage) submit(stage);
  }

  // True if entries deadlock.
  bool hang() {
    for (bool advances = true; advances;) {
      advances = false;
      for (Entry& entry : entries_) {
        if (entry.is_done || !may_run(entry)) continue;
        if (entry.partner && !may_run(entries_[*entry.partner])) continue;
        entry.is_done = advances = true;
        if (entry.partner) entries_[*entry.partner].is_done = true;
      }
    }
    return !std::ranges::all_of(entries_, &Entry::is_done);
  }

 private:
  struct Entry {
    std::vector<std::size_t> after;
    std::optional<std::size_t> partner = {};
    bool is_done = false;
  };
  // Is it an activation; the receiver's stage and chunk; the microbatch.
  using Message = std::tuple<bool, std::int64_t, std::int64_t, std::int64_t>;

  static Message received(std::int64_t stage, const StageAction& action) {
    return {action.kind == ActionKind::recv_activation, stage, action.chunk,
            action.microbatch.value()};
  }
  Message sent(std::int64_t stage, const StageAction& action) const {
    const Peer peer = peer_of(shape_, stage, action);
    return {action.kind == ActionKind::send_activation, peer.stage, peer.chunk,
            action.microbatch.value()};
  }

  void submit(std::int64_t stage) {
    std::map<int, std::size_t> last;  // by queue
    std::optional<std::size_t> pass;
    std::map<Message, std::size_t> receives;
    for (const StageAction& action : make_stage_schedule(shape_, stage)) {
      const std::size_t own = entries_.size();
      const Stream stream = stream_of(action.kind);
      Entry entry;
      if (last.contains(queues_[stream])) entry.after.push_back(last[queues_[stream]]);
      if (pass) entry.after.push_back(*pass);
      if (stream == compute) {
        if (const auto needed = receive_before(shape_, stage, action)) {
          entry.after.push_back(receives.at(received(stage, *needed)));
        }
        pass = own;
      } else {
        const bool is_send = stream == send_act || stream == send_grad;
        const Message message = is_send ? sent(stage, action) : received(stage, action);
        if (!is_send) receives[message] = own;
        const auto [other, is_first] = messages_.emplace(message, own);
        if (!is_first) {
          entry.partner = other->second;
          entries_[other->second].partner = own;
        }
      }
      last[queues_[stream]] = own;
      entries_.push_back(std::move(entry));
    }
  }

  [[nodiscard]] bool may_run(const Entry& entry) const {
    return std::ranges::all_of(entry.after,
                               [&](std::size_t before) { return entries_[before].is_done; });
  }

  const PipelineShape shape_;
  const Queues queues_;
  std::vector<Entry> entries_;
  std::map<Message, std::size_t> messages_;  // the side submitted first
};

const std::vector<PipelineShape>& shapes() {
  static const std::vector<PipelineShape> all = [] {
    std::vector<PipelineShape> made;
    for (const std::int64_t stages : {2, 3, 4, 8}) {
      for (const std::int64_t rounds : {1, 2, 4}) {
        for (const PipelineKind kind : {PipelineKind::gpipe, PipelineKind::one_f_one_b}) {
          made.push_back({.stages = stages, .microbatches = stages * rounds, .order = {kind}});
        }
        for (const std::int64_t chunks : {2, 3}) {
          made.push_back({.stages = stages,
                          .microbatches = stages * rounds,
                          .order = {PipelineKind::interleaved, chunks}});
        }
      }
    }
    return made;
  }();
  return all;
}

// Returns the number of shapes whose stages hang.
std::ptrdiff_t hangs(const Queues& queues) {
  return std::ranges::count_if(
      shapes(), [&](const PipelineShape& shape) { return Gpus(shape, queues).hang(); });
}

// Queues: compute, received activations, received gradients, sent activations, sent gradients.

TEST_CASE("No pipeline hangs if every stream has its own queue") {
  CHECK(hangs({0, 1, 2, 3, 4}) == 0);
}

TEST_CASE("A pipeline hangs if work it needs is queued behind a receive") {
  CHECK(hangs({0, 0, 0, 0, 0}) == std::ssize(shapes()));
  for (const PipelineKind kind : {PipelineKind::gpipe, PipelineKind::one_f_one_b}) {
    const PipelineShape four{.stages = 4, .microbatches = 8, .order = {kind}};
    CHECK_FALSE(Gpus(four, {0, 1, 2, 3, 4}).hang());
    CHECK(Gpus(four, {0, 1, 2, 2, 1}).hang());  // a queue for each neighbour
    const bool is_gpipe = kind == PipelineKind::gpipe;
    CHECK(Gpus(four, {0, 1, 0, 2, 3}).hang() == is_gpipe);  // passes behind received gradients
    CHECK(Gpus(four, {0, 1, 2, 2, 3}).hang() == is_gpipe);  // sent activations behind them
  }
}

TEST_CASE("No pipeline hangs if its receives share a stream and its sends share another") {
  CHECK(hangs({0, 1, 1, 2, 2}) == 0);
  CHECK(hangs({0, 1, 1, 0, 0}) == 0);  // sends may even share with passes
}

}  // namespace
}  // namespace dtrain::parallel::pipeline_queues_test
