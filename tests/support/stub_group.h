// A process group without ranks, for tests that need a few of its calls.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "dtrain/comm/process_group.h"

namespace dtrain::testing {

/// Rank 0 of a group of two. Every call throws: a test overrides the calls that it expects.
class StubGroup : public comm::ProcessGroup {
 public:
  [[nodiscard]] std::int64_t rank() const override { return 0; }
  [[nodiscard]] std::int64_t size() const override { return 2; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] comm::Work all_reduce(const at::Tensor&, comm::ReduceOp) override {
    throw std::logic_error("all_reduce");
  }
  [[nodiscard]] comm::Work reduce_scatter(const at::Tensor&, const at::Tensor&) override {
    throw std::logic_error("reduce_scatter");
  }
  [[nodiscard]] comm::Work all_gather(const at::Tensor&, const at::Tensor&) override {
    throw std::logic_error("all_gather");
  }
  [[nodiscard]] comm::Work all_gather_v(const at::Tensor&, const at::Tensor&,
                                        std::span<const std::int64_t>) override {
    throw std::logic_error("all_gather_v");
  }
  [[nodiscard]] comm::Work all_to_all(const at::Tensor&, std::span<const std::int64_t>,
                                      const at::Tensor&, std::span<const std::int64_t>) override {
    throw std::logic_error("all_to_all");
  }
  [[nodiscard]] comm::Work broadcast(const at::Tensor&, std::int64_t) override {
    throw std::logic_error("broadcast");
  }
  [[nodiscard]] comm::Work send(const at::Tensor&, std::int64_t) override {
    throw std::logic_error("send");
  }
  [[nodiscard]] comm::Work recv(const at::Tensor&, std::int64_t) override {
    throw std::logic_error("recv");
  }
  void barrier() override { throw std::logic_error("barrier"); }
  void abort(const std::string&) noexcept override {}
  [[nodiscard]] comm::CallRing& calls() const override { return *ring_; }

 protected:
  std::shared_ptr<comm::CallRing> ring_ = std::make_shared<comm::CallRing>();

 private:
  std::string name_ = "stub";
};

}  // namespace dtrain::testing
