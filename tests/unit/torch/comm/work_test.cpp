#include <ATen/ATen.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <latch>

#include "dtrain/comm/local/local_world.h"
#include "dtrain/comm/queued_group.h"
#include "dtrain/comm/serial_executor.h"
#include "support/ranks/stub_group.h"

namespace dtrain::testing::work_test {
namespace {

// Work::wait() may order a stream instead of blocking the host: tested with a group whose stream is
// a thread.
using Stream = comm::SerialExecutor;  // tasks end in FIFO order

/// The end of a task of one stream, for which another stream can wait.
class StreamCompletion final : public comm::Completion,
                               public std::enable_shared_from_this<StreamCompletion> {
 public:
  explicit StreamCompletion(Stream& of_caller) : of_caller_(of_caller) {}

  void finish() { end_.count_down(); }
  void wait() override {
    of_caller_.call([self = shared_from_this()] { self->end_.wait(); });
  }
  void wait_host() override { end_.wait(); }
  [[nodiscard]] bool is_completed() const override { return end_.try_wait(); }

 private:
  Stream& of_caller_;
  std::latch end_{1};
};

/// A group of ranks with equal tensors, which reduces on a stream of its own, once it may.
class StreamGroup final : public StubGroup {
 public:
  explicit StreamGroup(Stream& of_caller) : of_caller_(of_caller) {}

  [[nodiscard]] comm::Work post(comm::Operation operation) override {
    const at::Tensor tensor = std::get<comm::AllReduce>(operation).tensor;
    const auto completion = std::make_shared<StreamCompletion>(of_caller_);
    own_.call([this, tensor, completion] {
      // The limit lets a test that waits for ever fail instead.
      (void)gate_.get_future().wait_for(std::chrono::seconds(5));
      tensor.mul_(static_cast<double>(size()));
      completion->finish();
    });
    return comm::Work(completion);
  }
  void proceed() { gate_.set_value(); }

 private:
  Stream& of_caller_;
  std::promise<void> gate_;
  Stream own_;
};

TEST_CASE("wait orders the caller's stream after the operation, and the host continues") {
  Stream stream;
  StreamGroup group(stream);
  const at::Tensor values = at::ones({3});
  comm::Work work = group.all_reduce(values, comm::ReduceOp::sum);
  work.wait();
  CHECK(!work.is_completed());

  at::Tensor seen;
  std::latch is_read(1);
  stream.call([&] {
    seen = values.clone();
    is_read.count_down();
  });
  CHECK(!is_read.try_wait());
  group.proceed();
  is_read.wait();
  CHECK(at::equal(seen, at::full({3}, 2.0)));
  CHECK(work.is_completed());
}

TEST_CASE("wait_host blocks the host until the operation has ended") {
  Stream stream;
  StreamGroup group(stream);
  const at::Tensor values = at::ones({3});
  comm::Work work = group.all_reduce(values, comm::ReduceOp::sum);
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    group.proceed();
  });
  CHECK(!work.is_completed());
  work.wait_host();
  CHECK(at::equal(values, at::full({3}, 2.0)));
}

TEST_CASE("A host Work blocks in both waits and rethrows its error each time") {
  const auto ring = std::make_shared<comm::CallRing>();
  const auto completion = std::make_shared<comm::HostCompletion>(ring);
  comm::Work work(completion);
  CHECK(!work.is_completed());
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    completion->fail(std::make_exception_ptr(std::runtime_error("no answer")));
  });
  CHECK_THROWS_WITH(work.wait(), "no answer");
  CHECK_THROWS_WITH(work.wait_host(), "no answer");
  CHECK(work.is_completed());
  CHECK(ring->counters().wait_seconds > 0.03);
  CHECK(comm::Work().is_completed());
}

// Simulated peers: calls end at once, are counted, and leave defined values.
TEST_CASE("SilentWorld.EndsEveryCallAtOnceWithItsOwnValues") {
  const auto world = comm::make_silent_world(3);
  CHECK((world->rank() == 0 && world->size() == 3));
  const auto group = world->split(comm::ranks_below(3), "all");
  const at::Tensor sum = at::arange(6, at::kFloat);
  group->all_reduce(sum).wait();
  CHECK(at::equal(sum, at::arange(6, at::kFloat)));
  const at::Tensor slice = at::empty({2});
  group->reduce_scatter(sum, slice).wait();
  CHECK(at::equal(slice, at::arange(2, at::kFloat)));
  const at::Tensor gathered = at::empty({6});
  group->all_gather(slice, gathered).wait();
  CHECK(at::equal(gathered.view({3, 2}), slice.expand({3, 2})));
  const at::Tensor received = at::ones({4});
  comm::Work sent = group->send(sum, 1);
  group->recv(received, 2).wait();
  sent.wait();
  CHECK(at::equal(received, at::zeros({4})));
  group->barrier();
  CHECK(group->calls().counters().calls == 6);
  CHECK(world->split(std::vector<std::int64_t>{1, 2}, "others") == nullptr);
}

}  // namespace
}  // namespace dtrain::testing::work_test
