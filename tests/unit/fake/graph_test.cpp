// Tests that replays read the current values of memory, and that everything a real graph
// cannot contain is an error that names it.
#include "support/fake_device/graph.h"

#include "support/messages.h"
#include "unit/fake/fixture.h"

namespace dtrain::testing::fake::graph_test {
namespace {

std::unique_ptr<Graph> captured_by(const std::function<void()>& work) { return capture(0, work); }

TEST_CASE("A replay uses current memory contents and captured host values") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  const at::Tensor in = at::ones({3}, on_device());
  const at::Tensor out = at::zeros({3}, on_device());
  float factor = 2;
  const auto graph = captured_by([&] { out.copy_((in + 1) * factor); });
  CHECK(out.sum().item<float>() == 0);  // capture executes nothing
  factor = 100;
  for (const float value : {1.0F, 5.0F}) {
    in.fill_(value);
    graph->replay();
    CHECK(out.sum().item<float>() == 3 * (value + 1) * 2);
  }
  CHECK(counters(0).captures == 1);
  CHECK(counters(0).replays == 2);
}

TEST_CASE("A graph's output can be read after its tensor is freed") {
  const Fixture fixture(Execution::late);
  const at::Tensor in = at::ones({3}, on_device());
  const at::Tensor out = at::zeros({3}, on_device());
  at::Tensor made;
  auto first = captured_by([&] { made = in + 1; });
  auto second = captured_by([&] { out.copy_(made); });
  made = at::Tensor();
  first->replay();
  second->replay();
  CHECK(out.sum().item<float>() == 6);
}

TEST_CASE("Captures of one pool reuse freed memory, and nothing else does") {
  const Fixture fixture(Execution::late);
  const at::Tensor in = at::ones({1000}, on_device());
  const at::Tensor out = at::zeros({1000}, on_device());
  const std::size_t before = counters(0).bytes;
  const auto pool = std::make_shared<GraphPool>(0);
  const auto add_thrice = [&] {
    at::Tensor sum = in + 1;
    sum = sum + 1;
    sum = sum + 1;
    out.copy_(sum);
  };
  auto first = capture(0, add_thrice, pool);
  const std::size_t held = counters(0).bytes - before;
  CHECK(held == 2 * 4000);  // a sum and its predecessor
  auto second = capture(0, add_thrice, pool);
  CHECK(counters(0).bytes == before + held);
  (void)at::empty({1000}, on_device());
  CHECK(counters(0).peak_bytes >= before + held + 4000);
  first->replay();
  second->replay();
  CHECK(out.sum().item<float>() == 4000);
  limit_memory(0, before + held);
  CHECK_THROWS_AS(capture(
                      0, [&] { (void)at::empty({3000}, on_device()); }, pool),
                  c10::OutOfMemoryError);
  limit_memory(0, std::nullopt);
}

TEST_CASE("Host waits cannot be captured") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  const at::Tensor a = at::ones({3}, on_device());
  const at::Tensor pinned = at::ones({3}, at::TensorOptions().pinned_memory(true));
  const auto refuses = [](const std::function<void()>& work, const char* named) {
    CHECK_THROWS_WITH(captured_by(work), Names(named, "captured"));
  };
  refuses([&] { (void)a.sum().item<float>(); }, "_local_scalar_dense");
  refuses([&] { (void)a.nonzero(); }, "nonzero");
  refuses([&] { (void)a.cpu(); }, "copy to the host");
  refuses([&] { a.copy_(pinned, /*non_blocking=*/true); }, "copy from the host");
  refuses([&] { streams_of_device().synchronizeDevice(0); }, "wait of the host for the device");
  refuses(
      [&] {
        launch(streams_of_device().getStream(kDevice), "all_reduce", {}, {a},
               [](const auto&, const auto&) {});
      },
      "all_reduce");
  const c10::Stream side = streams_of_device().getNewStream(kDevice);
  refuses([&] { wait_for(side, streams_of_device().getStream(kDevice)); }, "of another stream");
  refuses([&] { (void)captured_by([] {}); }, "a capture");
  CHECK(a.sum().item<float>() == 3);  // the capture has ended
}

TEST_CASE("A replay names freed memory that a captured kernel uses") {
  const Fixture fixture;
  at::Tensor in = at::ones({25}, on_device());
  const at::Tensor out = at::zeros({25}, on_device());
  const auto graph = captured_by([&] { out.copy_(in); });
  in = at::Tensor();
  CHECK_THROWS_WITH(graph->replay(), Names("100 bytes", "fake:0", "freed"));
}

TEST_CASE("Races of replayed kernels are detected") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  const at::Tensor a = at::ones({25}, on_device());
  streams_of_device().synchronizeDevice(0);
  const auto graph = captured_by([&] { a.mul_(2); });
  const c10::Stream side = streams_of_device().getNewStream(kDevice);
  {
    const c10::StreamGuard on(side);
    graph->replay();
  }
  a.add_(1);
  const std::vector<std::string> races = take_races();
  REQUIRE(races.size() == 1);
  CHECK_THAT(races.front(), Catch::Contains("aten::mul (kernel 1 of stream"));
  streams_of_device().synchronizeDevice(0);
}

}  // namespace
}  // namespace dtrain::testing::fake::graph_test
