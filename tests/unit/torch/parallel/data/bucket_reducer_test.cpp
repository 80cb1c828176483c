#include "dtrain/parallel/data/internal/bucket_reducer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "unit/torch/parallel/data/small_units.h"

namespace dtrain::parallel::bucket_reducer_test {
namespace {

// 128 + 192 + 64 elements with padding: float32 buckets of 512 bytes begin in the middle of "b".
const param::ParameterSpecs kSpecs{spec("a", 100), spec("b", 192), spec("c", 64)};
const param::ArenaLayout kLayout(kSpecs);

struct Reduced {
  at::Tensor gradients;
  std::int64_t num_buckets = 0;
  std::vector<std::int64_t> calls;  // after begin and after each last use
  std::int64_t bytes_sent = 0;
};

// A last backward pass in which gradients become ready in the given order.
Reduced reduce(comm::World& world, std::int64_t bucket_bytes,
               const std::vector<param::ParameterId>& order) {
  const mesh::MeshGroups groups(world, mesh::DeviceMesh({{mesh::Axis::dp, world.size()}}));
  const comm::ProcessGroup& group = groups.along(mesh::Axis::dp);
  const UnitSchedule schedule;
  BucketReducer reducer(
      {.layout = kLayout, .schedule = schedule}, groups,
      [&](std::int64_t bytes) { return world.allocate(bytes); }, bucket_bytes);
  Reduced result{.gradients = {}, .num_buckets = reducer.num_buckets(), .calls = {}};
  reducer.begin_microbatch(0_m);
  result.calls.push_back(group.calls().counters().calls);
  for (const param::ParameterId id : order) {
    reducer.add_gradient(id,
                         values_of(world.rank() * 4 + id.value(), kSpecs[id].shape[0], at::kFloat));
    reducer.mark_gradient_ready(id);
    result.calls.push_back(group.calls().counters().calls);
  }
  reducer.finish();
  result.gradients = reducer.gradients().flat().clone();
  result.bytes_sent = group.calls().counters().bytes_sent;
  return result;
}

TEST_CASE("A bucket starts when its last gradient is ready") {
  testing::on_threads(2, [&](comm::World& world) {
    // Buckets of 128 elements from the end: [256, 384) c and the end of b, [128, 256) b, [0, 128)
    // a.
    const Reduced forward = reduce(world, 512, {2_p, 1_p, 0_p});
    expect(forward.calls == std::vector<std::int64_t>{0, 0, 2, 3}, "c alone completes no bucket");
    const Reduced backward = reduce(world, 512, {0_p, 2_p, 1_p});
    expect(backward.calls == std::vector<std::int64_t>{0, 0, 0, 3},
           "a's bucket waits for those before it");
  });
}

TEST_CASE("Ranks whose gradients are ready in different orders reduce the same buckets") {
  std::vector<at::Tensor> results(2);
  testing::on_threads(2, [&](comm::World& world) {
    const std::vector<param::ParameterId> order =
        world.rank() == 0 ? std::vector<param::ParameterId>{2_p, 1_p, 0_p}
                          : std::vector<param::ParameterId>{0_p, 1_p, 2_p};
    results[static_cast<std::size_t>(world.rank())] = reduce(world, 256, order).gradients;
  });
  CHECK(same_bits(results[0], results[1]));
  const auto range = kLayout.range(1_p);
  CHECK(same_bits(results[0].narrow(0, range.begin, range.size()),
                  values_of(1, 192, at::kFloat) + values_of(5, 192, at::kFloat)));
}

TEST_CASE("A bucket that was never reduced is detected as a defect") {
  testing::on_threads(1, [&](comm::World& world) {
    bool noticed = false;
    try {
      (void)reduce(world, 512, {2_p, 1_p});
    } catch (const base::Error& error) {
      noticed = std::string(error.what()).find("2 of 3 buckets") != std::string::npos;
    }
    expect(noticed, "an error");
  });
}

}  // namespace
}  // namespace dtrain::parallel::bucket_reducer_test
