// Failures of the fake device on demand, and the settings of a program that opens it.
#include "support/messages.h"
#include "unit/fake/fixture.h"

namespace dtrain::testing::fake::faults_test {
namespace {

TEST_CASE("An allocation beyond the limit is out of memory") {
  const Fixture fixture;
  limit_memory(0, counters().bytes + 5000);
  const at::Tensor x = at::ones({1000}, on_device());
  CHECK_THROWS_AS(x.mul(2), c10::OutOfMemoryError);
  CHECK_THROWS_WITH(at::empty({1000}, on_device()), Names("4000 bytes", "fake:0"));
  CHECK(counters().bytes == 4000);
  limit_memory(0, std::nullopt);
  CHECK(x.mul(2).sum().item<float>() == 2000);
}

TEST_CASE("A lost device fails every call after its last kernel") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  const at::Tensor x = at::ones({10}, on_device());
  lose_device_after(0, 2);
  x.mul_(2).mul_(2);
  CHECK_THROWS_AS(x.mul_(2), c10::AcceleratorError);
  CHECK_THROWS_WITH(x.cpu(), Names("ECC", "fake:0"));
  CHECK_THROWS_AS(at::empty({1}, on_device()), c10::AcceleratorError);
  CHECK_THROWS_AS(streams_of_device().synchronizeDevice(0), c10::AcceleratorError);
  CHECK(at::ones({10}, on_device(1)).sum().item<float>() == 10);
  lose_device_after(0, std::nullopt);
}

TEST_CASE("The queued kernels of a lost device do not run") {
  const Fixture fixture(Execution::late);
  const at::Tensor x = at::ones({10}, on_device());
  bool has_run = false;
  launch(streams_of_device().getStream(kDevice), "probe", {x}, {},
         [&](const auto&, const auto&) { has_run = true; });
  lose_device_after(0, 0);
  CHECK_THROWS_AS(streams_of_device().synchronizeDevice(0), c10::AcceleratorError);
  CHECK_FALSE(has_run);
  lose_device_after(0, std::nullopt);
}

TEST_CASE("A program that opens the library chooses by words") {
  const Fixture fixture;
  CHECK(dtrain_fake_device_open("late seed=3 queues=8 memory=100000 lose-after=2") == nullptr);
  CHECK_THROWS_AS(at::empty({25001}, on_device(3)), c10::OutOfMemoryError);
  const at::Tensor x = at::ones({10}, on_device(3));
  CHECK_FALSE(streams_of_device().queryStream(streams_of_device().getStream(x.device())));
  x.mul_(2);
  CHECK_THROWS_AS(x.mul_(2), c10::AcceleratorError);
  CHECK(dtrain_fake_device_open("") == nullptr);
  CHECK(at::ones({25001}, on_device(3)).mul_(2).sum().item<float>() == 50002);
  CHECK_THAT(dtrain_fake_device_open("slow"), Names("slow"));
  CHECK_THAT(dtrain_fake_device_open("seed=x"), Names("seed=x"));
}

}  // namespace
}  // namespace dtrain::testing::fake::faults_test
