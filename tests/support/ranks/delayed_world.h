// A world with delayed collectives, to test that computation overlaps communication.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "dtrain/comm/queued_group.h"
#include "dtrain/comm/world.h"

namespace dtrain::testing {

/// Forwards calls to another group; delays collectives.
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

/// Wraps another world. Its groups sleep for `delay` in every collective, in the thread that
/// executes the call, so a caller is delayed only if it waits.
///
/// Threads: one, as for World.
class DelayedWorld final : public comm::World {
 public:
  /// `inner` must outlive this and its groups.
  DelayedWorld(comm::World& inner, std::chrono::milliseconds delay)
      : inner_(inner), delay_(delay) {}

  [[nodiscard]] std::int64_t rank() const override { return inner_.rank(); }
  [[nodiscard]] std::int64_t size() const override { return inner_.size(); }
  [[nodiscard]] c10::Device device() const override { return inner_.device(); }
  [[nodiscard]] std::string_view backend() const override { return inner_.backend(); }
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override { return inner_.allocate(bytes); }
  [[nodiscard]] std::shared_ptr<comm::ProcessGroup> split(std::span<const std::int64_t> ranks,
                                                          std::string_view name) override {
    std::shared_ptr<comm::ProcessGroup> inner = inner_.split(ranks, name);
    if (inner == nullptr) return nullptr;
    return std::make_shared<comm::QueuedGroup>(
        comm::GroupIdentity{.name = std::string(name),
                            .rank = inner->rank(),
                            .world_ranks = {ranks.begin(), ranks.end()}},
        comm::GroupOptions{},
        ranks.size() == 1 ? nullptr : std::make_unique<DelayedTransport>(inner, delay_));
  }
  [[nodiscard]] comm::ProcessGroup& control() override { return inner_.control(); }

 private:
  comm::World& inner_;
  std::chrono::milliseconds delay_;
};

}  // namespace dtrain::testing
