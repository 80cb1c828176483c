// A rank whose peers are silent: calls end at once, are counted, and leave sensible values.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "dtrain/comm/local/local_world.h"

namespace dtrain::testing::silent_world_test {
namespace {

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
}  // namespace dtrain::testing::silent_world_test
