#include "dtrain/parallel/data/bucket_reducer.h"

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

// A last backward pass in which parameters end in the order given.
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
    reducer.settle(id);
    result.calls.push_back(group.calls().counters().calls);
  }
  reducer.finish();
  result.gradients = reducer.gradients().flat().clone();
  result.bytes_sent = group.calls().counters().bytes_sent;
  return result;
}

TEST_CASE("Buckets of any size give the same bits") {
  std::vector<at::Tensor> results;
  for (const std::int64_t bytes : {1 << 20, 512, 256, 64, 1}) {
    testing::on_threads(4, [&](comm::World& world) {
      const Reduced reduced = reduce(world, bytes, {2_p, 1_p, 0_p});
      if (world.rank() == 0) results.push_back(reduced.gradients);
      const std::int64_t elements = std::max(bytes / 4 / 64, std::int64_t{1}) * 64;
      expect(reduced.num_buckets == (384 + elements - 1) / elements, "the number of buckets");
      expect(reduced.calls.back() == reduced.num_buckets, "one call for each bucket");
    });
  }
  REQUIRE(results.size() == 5);
  for (const at::Tensor& result : results) CHECK(same_bits(result, results.front()));
  // By the tree over ranks, parameter by parameter.
  for (const param::ParameterId id : kSpecs.ids()) {
    std::vector<at::Tensor> parts;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      parts.push_back(values_of(rank * 4 + id.value(), kSpecs[id].shape[0], at::kFloat));
    }
    const auto range = kLayout.range(id);
    CHECK(same_bits(results.front().narrow(0, range.begin, range.size()),
                    (parts[0] + parts[1]) + (parts[2] + parts[3])));
  }
}

TEST_CASE("Buckets hold no frozen parameter, and begin anew after one") {
  const param::ArenaLayout layout(kSpecs, {.frozen = {1_p}});
  testing::on_threads(2, [&](comm::World& world) {
    const mesh::MeshGroups groups(world, mesh::DeviceMesh({{mesh::Axis::dp, 2}}));
    const UnitSchedule schedule;
    const ReducerSetup setup{.layout = layout, .schedule = schedule, .num_ranks = 2};
    const auto allocate = [&](std::int64_t bytes) { return world.allocate(bytes); };
    BucketReducer reducer(setup, groups, allocate, /*bucket_bytes=*/256);
    expect(reducer.num_buckets() == 2 + 1, "buckets of a, and of c");
    reducer.begin_microbatch(0_m);
    for (const param::ParameterId id : {2_p, 1_p, 0_p}) {
      if (id != 1_p)
        reducer.add_gradient(id, values_of(id.value(), kSpecs[id].shape[0], at::kFloat));
      reducer.settle(id);
    }
    reducer.finish();
    const comm::CallCounters& sent = groups.along(mesh::Axis::dp).calls().counters();
    expect(sent.calls == 3 && sent.bytes_sent == (128 + 64) * 4, "what is trained, once");
    expect(BucketReducer::traffic(setup).bytes == sent.bytes_sent, "the traffic that it announces");
    expect(same_bits(reducer.gradients().view(2_p), 2 * values_of(2, 64, at::kFloat)), "the sum");
  });
}

TEST_CASE("A bucket starts when its last parameter is final, not at the end") {
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

TEST_CASE("Ranks whose parameters end in different orders reduce the same buckets") {
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

TEST_CASE("What is sent is the gradient once in two ranks' ring, and nothing on one rank") {
  testing::on_threads(2, [&](comm::World& world) {
    const Reduced reduced = reduce(world, 512, {2_p, 1_p, 0_p});
    expect(reduced.bytes_sent == 384 * 4, "2 (n - 1) / n of the gradient's bytes");
  });
  testing::on_threads(1, [&](comm::World& world) {
    const Reduced reduced = reduce(world, 512, {2_p, 1_p, 0_p});
    expect(reduced.calls.back() == 0, "no call on one rank");
    expect(same_bits(reduced.gradients.narrow(0, 0, 100), values_of(0, 100, at::kFloat)),
           "gradients as they came");
  });
}

TEST_CASE("A bucket that was never reduced is a defect that is noticed") {
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
