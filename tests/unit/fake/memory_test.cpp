// Tests that the host cannot access device memory, nor pinned memory during a copy.
#include <sys/wait.h>
#include <unistd.h>

#include "support/messages.h"
#include "unit/fake/fixture.h"

namespace dtrain::testing::fake::memory_test {
namespace {

// Runs `work` in a child process; returns its standard error if SIGSEGV ends it, otherwise "no fault".
std::string fault_of(const std::function<void()>& act) {
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[1], STDERR_FILENO);
    act();
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string text;
  char letter = 0;
  while (read(pipe_ends[0], &letter, 1) == 1) text += letter;
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV ? text : "no fault";
}

TEST_CASE("A host tensor among device tensors is rejected") {
  const Fixture fixture;
  const at::Tensor x = at::ones({2, 2}, on_device());
  CHECK_THROWS_WITH(at::mm(x, at::ones({2, 2})), Names("mm", "host tensor", "[2, 2]"));
  CHECK_THROWS_WITH(at::mm(x, at::ones({2, 2}, on_device(1))), Catch::Contains("same device"));
  CHECK_THROWS_WITH(at::ones({2}, at::TensorOptions("fake:8")), Names("fake:8", "fake devices"));
}

TEST_CASE("Uninitialized memory contains NaN") {
  const Fixture fixture;
  CHECK(at::empty({1000}, on_device()).isnan().all().item<bool>());
}

TEST_CASE("A stray host access ends the process and names the block") {
  const Fixture fixture;
  const at::Tensor x = at::ones({100}, on_device());
  const auto read_it = [&] {
    [[maybe_unused]] const volatile float value = x.const_data_ptr<float>()[2];
  };
  CHECK_THAT(fault_of(read_it), Names("host", "reads", "byte 8", "device allocation", "400 bytes"));
  CHECK_THAT(fault_of([&] { x.mutable_data_ptr<float>()[3] = 1; }),
             Names("host", "writes", "byte 12", "device allocation"));
  CHECK_THAT(fault_of([&] { at::from_blob(x.data_ptr(), {100}, at::kFloat).sum(); }),
             Names("400 bytes"));
}

TEST_CASE("An access to freed memory ends the process") {
  const Fixture fixture;
  const float* address = at::ones({100}, on_device()).const_data_ptr<float>();
  CHECK_THAT(fault_of([&] { [[maybe_unused]] const volatile float value = *address; }),
             Names("host", "reads", "free"));
}

struct Pinned {
  at::Tensor host = at::ones({4096}, on_device().device(at::kCPU).pinned_memory(true));
  at::Tensor device = at::zeros({4096}, on_device());
};

TEST_CASE("Pinned memory is host memory and reported as pinned") {
  const Fixture fixture;
  const Pinned both;
  CHECK(both.host.is_pinned());
  CHECK(both.host.slice(0, 7, 9).is_pinned());
  CHECK_FALSE(at::ones({10}).is_pinned());
  CHECK(at::ones({10}).pin_memory().sum().item<float>() == 10);
}

TEST_CASE("The source of a copy in flight may be read but not written") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  Pinned both;
  both.device.copy_(both.host, /*non_blocking=*/true);
  CHECK(both.host[5].item<float>() == 1);
  CHECK_THAT(fault_of([&] { both.host.fill_(2); }),
             Names("host", "writes", "byte 0", "pinned allocation", "copy"));
  streams_of_device().synchronizeDevice(0);
  CHECK(fault_of([&] { both.host.fill_(2); }) == "no fault");
  CHECK(both.device.sum().item<float>() == 4096);
}

TEST_CASE("The target of a copy in flight may not be accessed before the host has waited") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  Pinned both;
  both.host.copy_(both.device, /*non_blocking=*/true);
  c10::Event event(kType);
  event.record(streams_of_device().getStream(kDevice));
  CHECK_THAT(fault_of([&] { both.host.sum(); }), Names("host", "reads", "pinned allocation"));
  SECTION("by synchronize") { event.synchronize(); }
  SECTION("by query") {
    while (!event.query()) {
    }
  }
  CHECK(both.host.sum().item<float>() == 0);
}

TEST_CASE("Waiting for an earlier event does not complete a later copy") {
  const Fixture fixture;
  Pinned both;
  c10::Event event(kType);
  event.record(streams_of_device().getStream(kDevice));
  both.host.copy_(both.device, /*non_blocking=*/true);
  event.synchronize();
  CHECK_THAT(fault_of([&] { both.host.sum(); }), Names("host", "reads", "pinned allocation"));
  streams_of_device().synchronizeDevice(0);
}

TEST_CASE("An asynchronous copy from pageable memory copies the values at its call") {
  const Fixture fixture(Execution::late);
  at::Tensor host = at::ones({10});
  const at::Tensor device = host.to(kDevice, /*non_blocking=*/true);
  host.fill_(2);
  CHECK(counters().host_waits.total() == 0);
  CHECK(device.sum().item<float>() == 10);
}

TEST_CASE("Host waits are counted by cause") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  const at::Tensor x = at::ones({4}, on_device()).mul(2).relu();
  CHECK(counters().host_waits.total() == 0);
  CHECK(x.sum().item<float>() == 8);
  CHECK(counters().host_waits.item == 1);
  CHECK(at::equal(x, x));
  CHECK(x.nonzero().size(0) == 4);
  CHECK(counters().host_waits.value == 2);
  CHECK(x.cpu().size(0) == 4);
  (void)at::ones({4}).to(kDevice);
  CHECK(counters().host_waits.copy == 2);
  const c10::Stream stream = streams_of_device().getStream(kDevice);
  stream.synchronize();
  streams_of_device().synchronizeDevice(0);
  c10::Event event(kType);
  event.record(stream);
  event.synchronize();
  const Synchronisations waits = counters().host_waits;
  CHECK((waits.stream == 1 && waits.device == 1 && waits.event == 1));
  CHECK(waits.total() == 8);
}

TEST_CASE("Device memory and its peak are counted") {
  const Fixture fixture;
  const std::size_t before = counters().bytes;
  {
    const at::Tensor x = at::ones({1000}, on_device());
    CHECK(counters().bytes == before + 4000);
    (void)x.mul(2);
  }
  CHECK(counters().bytes == before);
  CHECK(counters().peak_bytes == before + 8000);
  CHECK(counters(1).peak_bytes == 0);
}

// Fault injection.

TEST_CASE("An allocation beyond the limit throws OutOfMemoryError") {
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

TEST_CASE("A program that loads the library selects options by name") {
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
}  // namespace dtrain::testing::fake::memory_test
