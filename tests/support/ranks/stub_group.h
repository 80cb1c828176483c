// A process group without communication, for tests that need only a few of its calls.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtrain/comm/process_group.h"

namespace dtrain::testing {

/// Rank 0 of a two-rank group. Every operation throws unless a test overrides post().
class StubGroup : public comm::ProcessGroup {
 public:
  [[nodiscard]] std::int64_t rank() const override { return 0; }
  [[nodiscard]] std::int64_t size() const override { return 2; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] comm::Work post(comm::Operation operation) override {
    throw std::logic_error(std::string(comm::record_of(operation, world_ranks_).op));
  }
  void abort(const std::string&) noexcept override {}
  [[nodiscard]] comm::CallRing& calls() const override { return *ring_; }

 protected:
  std::shared_ptr<comm::CallRing> ring_ = std::make_shared<comm::CallRing>();

 private:
  std::string name_ = "stub";
  std::vector<std::int64_t> world_ranks_{0, 1};
};

}  // namespace dtrain::testing
