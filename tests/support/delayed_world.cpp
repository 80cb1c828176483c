#include "support/delayed_world.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/comm/queued_group.h"

namespace dtrain::testing {
namespace {

/// Carries calls out through another group, late.
class DelayedTransport final : public comm::Transport {
 public:
  DelayedTransport(std::shared_ptr<comm::ProcessGroup> inner, std::chrono::milliseconds delay)
      : inner_(std::move(inner)), delay_(delay) {}

  std::int64_t run(const comm::Operation& operation, const base::Deadline&) override {
    const bool is_message = std::holds_alternative<comm::Send>(operation) ||
                            std::holds_alternative<comm::Recv>(operation);
    if (!is_message && !std::holds_alternative<comm::Barrier>(operation)) {
      std::this_thread::sleep_for(delay_);
    }
    const std::int64_t before = inner_->calls().counters().bytes_sent;
    inner_->post(operation).wait();
    return inner_->calls().counters().bytes_sent - before;
  }
  void close(const std::string& reason) noexcept override { inner_->abort(reason); }

 private:
  std::shared_ptr<comm::ProcessGroup> inner_;
  std::chrono::milliseconds delay_;
};

}  // namespace

std::shared_ptr<comm::ProcessGroup> DelayedWorld::split(std::span<const std::int64_t> ranks,
                                                        std::string_view name) {
  std::shared_ptr<comm::ProcessGroup> inner = inner_.split(ranks, name);
  if (inner == nullptr) return nullptr;
  return std::make_shared<comm::QueuedGroup>(
      comm::GroupIdentity{.name = std::string(name),
                          .rank = inner->rank(),
                          .world_ranks = {ranks.begin(), ranks.end()}},
      comm::GroupOptions{},
      ranks.size() == 1 ? nullptr : std::make_unique<DelayedTransport>(inner, delay_));
}

}  // namespace dtrain::testing
