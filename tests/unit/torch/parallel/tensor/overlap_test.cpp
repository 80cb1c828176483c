// A column split's backward pass: dx is reduced while dW is computed.
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "dtrain/comm/queued_group.h"
#include "dtrain/parallel/tensor/splits.h"
#include "support/ranks/stub_group.h"

namespace dtrain::parallel::overlap_test {
namespace {

/// A group whose only operation, all_reduce, ends when the test says so.
class HeldGroup final : public testing::StubGroup {
 public:
  [[nodiscard]] comm::Work post(comm::Operation) override {
    events += 'r';
    under_way_ = std::make_shared<comm::HostCompletion>(ring_);
    return comm::Work(under_way_);
  }

  /// Call when a product begins; a pending reduction may complete.
  void note_product() {
    events += 'p';
    if (under_way_ && !under_way_->is_completed()) under_way_->finish();
  }
  /// Makes a call that never ends fail the test instead of hanging it.
  void fail_pending() {
    if (under_way_ && !under_way_->is_completed()) {
      under_way_->fail(
          std::make_exception_ptr(std::runtime_error("no product while dx is reduced")));
    }
  }

  std::string events;  ///< r: all_reduce, p: product

 private:
  std::shared_ptr<comm::HostCompletion> under_way_;
};

thread_local HeldGroup* observed = nullptr;

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
  if (observed != nullptr && std::string_view(function.name()) == "aten::bmm") {
    observed->note_product();
  }
  return nullptr;
}

TEST_CASE("The reduction of dx starts before dW is computed and is awaited after it") {
  HeldGroup group;
  const at::Tensor x = at::ones({1, 5, 3}).requires_grad_();
  const at::Tensor weight = at::ones({2, 4, 3}).requires_grad_();
  const at::Tensor product = column_split({.group = group}, x, weight).product;
  std::mutex mutex;
  std::condition_variable_any ended;
  std::jthread watchdog([&](const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    ended.wait_for(lock, stop, std::chrono::seconds(10), [] { return false; });
    if (!stop.stop_requested()) group.fail_pending();
  });
  observed = &group;
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
  CHECK_NOTHROW(torch::autograd::backward({product}, {at::ones_like(product)}));
  at::removeCallback(handle);
  observed = nullptr;
  CHECK(group.events == "prp");
  CHECK(weight.grad().eq(5).all().item<bool>());
}

}  // namespace
}  // namespace dtrain::parallel::overlap_test
