// Tests that the fake device reports unordered accesses of two streams to the same bytes, and nothing else.
#include <thread>

#include "support/messages.h"
#include "unit/fake/fixture.h"

namespace dtrain::testing::fake::races_test {
namespace {

// A tensor that both streams may use, because the host has synchronized.
at::Tensor settled(at::IntArrayRef sizes) {
  at::Tensor made = at::ones(sizes, on_device());
  streams_of_device().synchronizeDevice(0);
  return made;
}

class TwoStreams : public Fixture {
 public:
  using Fixture::Fixture;

  // Runs on the side stream, which owns the tensors created here.
  template <typename Launches>
  void beside(Launches&& launches) const {
    const c10::StreamGuard on(side);
    launches();
  }
  // Expects one report with all of these words, then synchronizes.
  void expect_race(const std::vector<std::string>& words) const {
    const std::vector<std::string> races = take_races();
    streams_of_device().synchronizeDevice(0);
    REQUIRE(races.size() == 1);
    for (const std::string& word : words) CHECK_THAT(races.front(), Catch::Contains(word));
  }

  const c10::Stream side = streams_of_device().getNewStream(kDevice);
  const c10::Stream main = streams_of_device().getDefaultStream(kDevice);
};

TEST_CASE("A read without a wait is a race that names the block, both kernels and streams") {
  const TwoStreams test(GENERATE(Execution::prompt, Execution::late));
  const at::Tensor a = settled({10, 10});
  at::Tensor b;
  a.mul_(2);
  test.beside([&] { b = a + 1; });
  test.expect_race({"(400 bytes of fake:0)",
                    "aten::add (kernel 1 of stream " + std::to_string(test.side.id()) + ") reads",
                    "aten::mul", "of stream 0) writes"});
}

TEST_CASE("A read that waits for the writer is no race") {
  const TwoStreams test(GENERATE(Execution::prompt, Execution::late));
  const at::Tensor a = settled({10, 10});
  at::Tensor b;
  a.mul_(2);
  wait_for(test.side, test.main);
  test.beside([&] { b = a + 1; });
  wait_for(test.main, test.side);
  b.record_stream(test.main);
  CHECK((b + a).sum().item<float>() == 500);
}

TEST_CASE("An event recorded before the write does not order it") {
  const TwoStreams test;
  const at::Tensor a = settled({10});
  wait_for(test.side, test.main);
  a.mul_(2);
  test.beside([&] { a.sum(); });
  test.expect_race({"reads", "writes"});
}

TEST_CASE("A write to bytes that another stream may still read is a race") {
  const TwoStreams test;
  const at::Tensor a = settled({10});
  test.beside([&] { a.sum(); });
  a.mul_(2);
  test.expect_race({"aten::mul", "aten::sum"});
}

TEST_CASE("Streams may write disjoint bytes of one block, but not a common byte") {
  const TwoStreams test;
  const at::Tensor grid = settled({64, 64});
  grid.slice(1, 0, 32).add_(1);
  test.beside([&] { grid.slice(1, 32, 64).add_(1); });
  const at::Tensor flat = settled({4096});
  flat.slice(0, 0, 2048).add_(1);
  test.beside([&] { flat.slice(0, 2048, 4096).add_(1); });
  CHECK(take_races().empty());
  test.beside([&] { flat.slice(0, 2047, 2050).add_(1); });
  test.expect_race({"bytes 8188 to 8192"});
}

TEST_CASE("Freeing memory that another stream still uses requires record_stream or an event") {
  const TwoStreams test(GENERATE(Execution::prompt, Execution::late));
  const auto use_and_free = [&](bool is_recorded, bool is_awaited) {
    const at::Tensor temporary = settled({64});
    test.beside([&] { temporary.sum(); });
    if (is_recorded) at::Tensor(temporary).record_stream(test.side);
    if (is_awaited) wait_for(test.main, test.side);
  };
  use_and_free(true, false);
  use_and_free(false, true);
  CHECK(take_races().empty());
  use_and_free(false, false);
  test.expect_race({"is freed", "aten::sum"});
}

TEST_CASE("Memory allocated for one stream must not be used on another without ordering") {
  const TwoStreams test;
  const at::Tensor busy = at::ones({64}, on_device());
  const at::Tensor fresh = at::empty({64}, on_device());
  test.beside([&] { fresh.fill_(1); });
  test.expect_race({"its allocation"});
}

TEST_CASE("Autograd orders the streams of forward and backward") {
  const TwoStreams test(GENERATE(Execution::prompt, Execution::late));
  const at::Tensor x = at::ones({8, 8}, on_device()).requires_grad_();
  const at::Tensor y = at::mm(x, x);
  at::Tensor z;
  wait_for(test.side, test.main);
  test.beside([&] { z = y.tanh(); });
  wait_for(test.main, test.side);
  z.record_stream(test.main);
  y.record_stream(test.side);
  torch::autograd::backward({(z * y).sum()});
  const at::Tensor gradient = x.grad().mul(2);
  CHECK(gradient.isfinite().all().item<bool>());
}

TEST_CASE("Events, and copies between devices, order them") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  const at::Tensor here = at::ones({100}, on_device(0)).mul(3);
  const at::Tensor there = here.to(c10::Device(kType, 1)).add(1);
  CHECK(there.sum().item<float>() == 400);
}

TEST_CASE("Races can be reported as errors at the next synchronization") {
  const TwoStreams test;
  set_options({.races_are_errors = true});
  const at::Tensor a = settled({10});
  a.mul_(2);
  test.beside([&] { a.sum(); });
  CHECK_THROWS_WITH(streams_of_device().synchronizeDevice(0), Names("race", "bytes"));
  test.expect_race({"race"});
}

}  // namespace
}  // namespace dtrain::testing::fake::races_test
