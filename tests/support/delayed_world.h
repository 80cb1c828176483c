// A world whose collectives take longer than they need, to show what runs beside them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "dtrain/comm/world.h"

namespace dtrain::testing {

/// Another world's ranks and memory. Its groups sleep for `delay` in every collective call, in the
/// thread that carries the calls out, so that callers who do not wait lose no time.
///
/// Threads: one, as World.
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
                                                          std::string_view name) override;
  [[nodiscard]] comm::ProcessGroup& control() override { return inner_.control(); }

 private:
  comm::World& inner_;
  std::chrono::milliseconds delay_;
};

}  // namespace dtrain::testing
