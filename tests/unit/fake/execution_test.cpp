// Tests late execution: kernels run in any order that events allow; collectives wait on streams.
#include <atomic>
#include <barrier>
#include <chrono>
#include <mutex>
#include <thread>

#include "unit/fake/fixture.h"

namespace dtrain::testing::fake::execution_test {
namespace {

TEST_CASE("Late kernels run when the host waits for them") {
  const Fixture fixture(Execution::late);
  const at::Tensor x = at::ones({10}, on_device());
  std::atomic<bool> has_run = false;
  launch(streams_of_device().getStream(kDevice), "probe", {x}, {},
         [&](const auto&, const auto&) { has_run = true; });
  CHECK_FALSE(has_run);
  CHECK_FALSE(streams_of_device().queryStream(streams_of_device().getStream(kDevice)));
  streams_of_device().synchronizeDevice(0);
  CHECK(has_run);
}

TEST_CASE("New tensors are computed late too") {
  const Fixture fixture(Execution::late);
  const at::Tensor x = at::ones({33, 48}, on_device());
  const at::Tensor y = at::layer_norm(at::mm(x, x.t()).relu() + 1, {33}, {}, {}, 1e-5);
  CHECK_FALSE(streams_of_device().queryStream(streams_of_device().getStream(kDevice)));
  CHECK(counters().late_kernels == counters().kernels);
  CHECK(y.isfinite().all().item<bool>());
}

TEST_CASE("Kernels run eventually if the host never waits") {
  const Fixture fixture(Execution::late);
  const at::Tensor x = at::ones({10}, on_device());
  const c10::Stream stream = streams_of_device().getStream(kDevice);
  while (!streams_of_device().queryStream(stream)) std::this_thread::yield();
  CHECK(counters().host_waits.total() == 0);
}

// The execution order of unordered kernels on four streams.
std::vector<std::int64_t> order_of(std::uint64_t seed) {
  const Fixture fixture(Execution::late, seed);
  const at::Tensor counter = at::zeros({}, on_device().dtype(at::kLong));
  std::vector<at::Tensor> numbers;
  streams_of_device().synchronizeDevice(0);
  for (int i = 0; i < 4; ++i) {
    const c10::StreamGuard on(streams_of_device().getNewStream(kDevice));
    for (int k = 0; k < 3; ++k) {
      counter.add_(1);
      numbers.push_back(counter.clone());
    }
  }
  streams_of_device().synchronizeDevice(0);
  CHECK_FALSE(take_races().empty());
  std::vector<std::int64_t> order;
  for (const at::Tensor& number : numbers) order.push_back(number.item<std::int64_t>());
  numbers.clear();
  return order;
}

TEST_CASE("The seed determines the order of unordered kernels") {
  const std::vector<std::int64_t> first = order_of(1);
  CHECK(order_of(1) == first);
  bool differs = false;
  for (std::uint64_t seed = 2; seed < 6; ++seed) differs = differs || order_of(seed) != first;
  CHECK(differs);
}

// Three streams update a value in turn, with or without waiting for each other.
float relay(std::uint64_t seed, bool is_ordered) {
  const Fixture fixture(Execution::late, seed);
  const at::Tensor value = at::ones({64, 64}, on_device());
  streams_of_device().synchronizeDevice(0);
  c10::Stream last = streams_of_device().getStream(kDevice);
  for (int i = 1; i <= 6; ++i) {
    const c10::Stream next = streams_of_device().getNewStream(kDevice);
    if (is_ordered) wait_for(next, last);
    const c10::StreamGuard on(next);
    value.mul_(2).add_(i);
    last = next;
  }
  streams_of_device().synchronizeDevice(0);
  const float result = value[0][0].item<float>();
  CHECK(take_races().empty() == is_ordered);
  return result;
}

TEST_CASE("With events between dependent kernels, any order gives the same result") {
  constexpr float kExpected = 64 + 32 + 32 + 24 + 16 + 10 + 6;
  bool is_wrong_without_order = false;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CHECK(relay(seed, true) == kExpected);
    is_wrong_without_order = is_wrong_without_order || relay(seed, false) != kExpected;
  }
  CHECK(is_wrong_without_order);
}

// An all-reduce over ranks with one device each, as a backend launches it: a kernel that waits for peers.
class MeetingRanks {
 public:
  explicit MeetingRanks(std::ptrdiff_t ranks) : met_(ranks), done_(ranks, Forget{sum_}) {}

  void all_reduce(const c10::Stream& stream, const at::Tensor& tensor) {
    launch(stream, "all_reduce", {}, {tensor}, [this](const auto&, const auto& writes) {
      {
        const std::lock_guard lock(mutex_);
        sum_ = sum_.defined() ? sum_ + writes[0] : writes[0].clone();
      }
      met_.arrive_and_wait();
      writes[0].copy_(sum_);
      done_.arrive_and_wait();
    });
  }

 private:
  struct Forget {
    at::Tensor& sum;
    void operator()() noexcept { sum.reset(); }
  };

  std::mutex mutex_;
  at::Tensor sum_;
  std::barrier<> met_;
  std::barrier<Forget> done_;
};

TEST_CASE("Collectives run late and in order on their stream, concurrently with kernels") {
  const Execution execution = GENERATE(Execution::prompt, Execution::late);
  const bool is_awaited = GENERATE(true, false);
  const Fixture fixture(execution);
  MeetingRanks ranks(2);
  std::array<float, 2> results{};
  const auto rank = [&](c10::DeviceIndex index) {
    const c10::Device device(kType, index);
    const c10::DeviceGuard on(device);
    const c10::Stream compute = streams_of_device().getStream(device);
    const c10::Stream communication = streams_of_device().getNewStream(device);
    const at::Tensor x = at::full({1000}, index + 1, on_device(index));
    for (int i = 0; i < 3; ++i) {
      wait_for(communication, compute);
      ranks.all_reduce(communication, x);  // 3, 12, 48
      if (is_awaited) wait_for(compute, communication);
      x.mul_(2);
    }
    streams_of_device().synchronizeDevice(index);
    results[static_cast<std::size_t>(index)] = x[7].item<float>();
  };
  std::thread other(rank, c10::DeviceIndex{1});
  rank(0);
  other.join();
  if (is_awaited) {
    CHECK(results == std::array<float, 2>{96, 96});
  } else {
    CHECK(take_races().size() == 2 * 3);
  }
}

TEST_CASE("A kernel that waits for another stream does not block it") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late), GENERATE(1U, 2U, 3U));
  const at::Tensor x = at::ones({10}, on_device());
  const at::Tensor y = at::ones({10}, on_device());
  const at::Tensor z = at::ones({10}, on_device());
  streams_of_device().synchronizeDevice(0);
  std::barrier<> both(2);
  for (const at::Tensor& tensor : {x, y}) {
    launch(streams_of_device().getNewStream(kDevice), "meet", {tensor}, {},
           [&](const auto&, const auto&) { both.arrive_and_wait(); });
  }
  CHECK(z.sum().item<float>() == 10);
  streams_of_device().synchronizeDevice(0);
}

// True if a kernel runs within the time limit while an earlier kernel of another stream
// waits.
bool runs_beside_a_wait(std::size_t queues, std::chrono::milliseconds limit) {
  const Fixture fixture(Execution::late);
  const at::Tensor x = at::ones({10}, on_device());
  set_options({.execution = Execution::late, .queues = queues});
  std::atomic<bool> may_end = false;
  std::atomic<bool> has_run = false;
  launch(streams_of_device().getNewStream(kDevice), "wait", {x}, {}, [&](const auto&, const auto&) {
    while (!may_end) std::this_thread::yield();
  });
  launch(streams_of_device().getNewStream(kDevice), "run", {x}, {},
         [&](const auto&, const auto&) { has_run = true; });
  const auto start = std::chrono::steady_clock::now();
  while (!has_run && std::chrono::steady_clock::now() - start < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const bool result = has_run;
  may_end = true;
  streams_of_device().synchronizeDevice(0);
  CHECK(has_run);
  set_options({});
  return result;
}

TEST_CASE("Streams that share a hardware queue run in the order of submission") {
  CHECK(runs_beside_a_wait(0, std::chrono::seconds(20)));
  CHECK(runs_beside_a_wait(2, std::chrono::seconds(20)));
  CHECK_FALSE(runs_beside_a_wait(1, std::chrono::milliseconds(500)));
}

TEST_CASE("An exception of a late kernel is thrown at the next synchronization") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  const at::Tensor x = at::ones({10}, on_device());
  launch(streams_of_device().getStream(kDevice), "broken", {}, {x},
         [](const auto&, const auto&) { TORCH_CHECK(false, "kernel failed"); });
  CHECK_THROWS_WITH(streams_of_device().synchronizeDevice(0), Catch::Contains("kernel failed"));
  streams_of_device().synchronizeDevice(0);
}

}  // namespace
}  // namespace dtrain::testing::fake::execution_test
