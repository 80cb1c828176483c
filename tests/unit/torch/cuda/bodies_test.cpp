// The kernels for GPUs, thread by thread on the CPU, beside the CPU's own operators.
#include "cuda/bodies.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>
#include <optional>
#include <vector>

#include "cuda/tree_reduce_body.h"
#include "dtrain/comm/reduce.h"
#include "dtrain/device/operator.h"
#include "dtrain/device/ordered_sum.h"
#include "dtrain/model/bdh/rope.h"
#include "dtrain/model/dropout.h"
#include "dtrain/optim/norm_cell.h"
#include "support/gpu_on_threads.h"
#include "support/values.h"

namespace dtrain::cuda {
namespace {

using testing::same_bits;
using testing::values_of;

template <typename Body>
void run(std::int64_t count, const Body& body) {
  for (std::int64_t index = 0; index < count; ++index) body(index);
}

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

TEMPLATE_TEST_CASE("The dropout kernel has the bits of the CPU's", "", float, double, at::BFloat16,
                   at::Half) {
  const auto [neurons, first_neuron] =
      GENERATE(std::pair<std::int64_t, std::int64_t>{128, 64}, std::pair{128, 40}, std::pair{72, 0},
               std::pair{10, 60}, std::pair{1, 63});
  CAPTURE(neurons, first_neuron);
  constexpr std::int64_t kHeads = 3;
  const std::vector<std::int64_t> shape{kHeads, 2, 5, neurons};
  const at::Tensor x =
      values_of(1, kHeads * 2 * 5 * neurons, c10::CppTypeToScalarType<TestType>::value).view(shape);
  const model::DropoutPlace place{
      .seed = 77,
      .level = 3,
      .first_sample = at::scalar_tensor((std::int64_t{1} << 32) - 1, at::kLong),
      .first_neuron = first_neuron};
  at::Tensor out = at::full_like(x, 12345);
  const DropoutBody<TestType> body{
      .rows = {2, 5, neurons, place.level, place.first_sample.const_data_ptr<std::int64_t>(),
               first_neuron},
      .key = base::philox_key(place.seed, base::RandomPurpose::dropout),
      .rule = model::drop_rule<TestType>(0.3),
      .in = x.const_data_ptr<TestType>(),
      .out = out.mutable_data_ptr<TestType>()};
  run(body.size(kHeads * 2 * 5), body);
  CHECK(same_bits(out, model::dropout(x, 0.3, place)));
}

TEMPLATE_TEST_CASE("The rotation kernel has the bits of the CPU's", "", at::BFloat16, at::Half) {
  const at::Tensor v =
      values_of(2, 2 * 3 * 7 * 12, c10::CppTypeToScalarType<TestType>::value).view({2, 3, 7, 12});
  const at::Tensor table =
      model::bdh::rope_rotations(5, 12, {.whole = 32, .first = 4, .count = 12}, at::kFloat);
  at::Tensor out = at::empty_like(v);
  run(v.numel() / 2, RopeBody<TestType>{.in = v.const_data_ptr<TestType>(),
                                        .out = out.mutable_data_ptr<TestType>(),
                                        .table = table.const_data_ptr<float>(),
                                        .table_pairs = 7 * 6,
                                        .direction = 1});
  CHECK(same_bits(out, model::bdh::rope_rotate(v, table)));
}

TEMPLATE_TEST_CASE("The norm kernel has the bits of the CPU's", "", float, double) {
  const at::Tensor values = values_of(3, 10'000, c10::CppTypeToScalarType<TestType>::value);
  const at::Tensor table =
      at::tensor({0, 4096, 0, 0, 4096, 4096, 1, 1, 8192, 1781, 70, 0, 9984, 13, 71, 1}, at::kLong)
          .view({4, 4});
  const at::Tensor expected = values_of(4, 72, at::kDouble);
  const at::Tensor found = expected.clone();
  device::Operator<void(const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
      "dtrain::norm_sums_")(values, table, expected);
  const auto* blocks =
      reinterpret_cast<const optim::NormBlock*>(table.const_data_ptr<std::int64_t>());
  testing::start_on_threads(4, kMaxCells * kLanes, run_norm_sums<TestType>,
                            values.const_data_ptr<TestType>(), blocks,
                            found.mutable_data_ptr<double>());
  CHECK(same_bits(found, expected));
  CHECK_FALSE(at::equal(found, values_of(4, 72, at::kDouble)));
}

TEST_CASE("The kernel that adds the sums of each parameter has the bits of the CPU's") {
  // Parameters of one block, of more blocks than a block has threads, and of none.
  const at::Tensor sums = values_of(4, 1400, at::kDouble);
  std::vector<std::int64_t> table;
  for (std::int64_t block = 0; block < 300; ++block) {
    table.insert(table.end(), {block * 4, block % 5});
  }
  const at::Tensor blocks = at::tensor(table, at::kLong).view({300, 2});
  const at::Tensor ends = at::tensor({1, 290, 290, 300}, at::kLong);
  const at::Tensor found = at::full({4}, kNoNumber, at::kDouble);
  testing::start_on_threads(4, kThreads, run_norm_squares, sums.const_data_ptr<double>(),
                            reinterpret_cast<const SlotRange*>(blocks.const_data_ptr<int64_t>()),
                            ends.const_data_ptr<std::int64_t>(), found.mutable_data_ptr<double>());
  CHECK(same_bits(
      found, device::Operator<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
                 "dtrain::norm_squares")(sums, blocks, ends)));
}

TEMPLATE_TEST_CASE("The kernel of sums in order has the bits of the CPU's", "", float, double,
                   at::BFloat16, at::Half) {
  const std::int64_t length = GENERATE(1, 255, 256, 257, 1000);
  CAPTURE(length);
  const at::Tensor values =
      values_of(10, 3 * length, c10::CppTypeToScalarType<TestType>::value).view({3, length});
  const at::Tensor found = at::full({3}, kNoNumber, at::kDouble);
  testing::start_on_threads(3, kThreads, run_ordered_sum<TestType>,
                            values.const_data_ptr<TestType>(), length,
                            found.mutable_data_ptr<double>());
  CHECK(same_bits(found, device::ordered_sum(values)));
}

// Weight, gradient and two kinds of state, the second of which is never negative.
struct State {
  explicit State(at::ScalarType dtype)
      : weight(values_of(4, 75, dtype)),
        gradient(values_of(5, 75, dtype)),
        first(values_of(6, 75, dtype)),
        second(values_of(7, 75, dtype).square()) {}
  at::Tensor weight, gradient, first, second;
};

TEMPLATE_TEST_CASE("The AdamW kernel has the bits of the CPU's", "", float, double) {
  const bool may_update = GENERATE(true, false);
  constexpr auto kDtype = c10::CppTypeToScalarType<TestType>::value;
  const State expected(kDtype);
  State found(kDtype);
  const std::int64_t num_updates = GENERATE(1, 2, 1000);
  const at::Tensor updates = at::full({1}, num_updates, at::kFloat);
  const at::Tensor rate = at::full({}, 1e-3, at::kDouble);
  const at::Tensor may = at::full({}, may_update, at::kBool);
  device::Operator<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                        const at::Tensor&, const at::Tensor&, const at::Tensor&, double, double,
                        double, double)>("dtrain::adamw_")(expected.weight, expected.gradient,
                                                           expected.first, expected.second, updates,
                                                           rate, may, 0.9, 0.99, 1e-8, 0.1);
  const AdamWBody<TestType> body{.settings = {0.9, 0.99, 1e-8, 0.1},
                                 .num_updates = updates.const_data_ptr<float>(),
                                 .learning_rate = rate.const_data_ptr<double>(),
                                 .may_update = may.const_data_ptr<bool>(),
                                 .weight = found.weight.template mutable_data_ptr<TestType>(),
                                 .gradient = found.gradient.template const_data_ptr<TestType>(),
                                 .first = found.first.template mutable_data_ptr<TestType>(),
                                 .second = found.second.template mutable_data_ptr<TestType>()};
  run(75, body.prepared());
  CHECK(same_bits(found.weight, expected.weight));
  CHECK(same_bits(found.first, expected.first));
  CHECK(same_bits(found.second, expected.second));
  CHECK(same_bits(found.weight, State(kDtype).weight) == !may_update);
}

TEMPLATE_TEST_CASE("The SGD kernel has the bits of the CPU's", "", float, double) {
  const bool has_momentum = GENERATE(true, false);
  constexpr auto kDtype = c10::CppTypeToScalarType<TestType>::value;
  const State expected(kDtype);
  State found(kDtype);
  const bool may_update = GENERATE(true, false);
  const at::Tensor rate = at::full({}, 1e-3, at::kDouble);
  const at::Tensor may = at::full({}, may_update, at::kBool);
  device::Operator<void(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                        const at::Tensor&, const at::Tensor&, double, double)>("dtrain::sgd_")(
      expected.weight, expected.gradient,
      has_momentum ? std::optional(expected.first) : std::nullopt, rate, may, 0.9, 0.1);
  run(75,
      SgdBody<TestType>{
          .momentum = 0.9,
          .weight_decay = 0.1,
          .learning_rate = rate.const_data_ptr<double>(),
          .may_update = may.const_data_ptr<bool>(),
          .weight = found.weight.template mutable_data_ptr<TestType>(),
          .gradient = found.gradient.template const_data_ptr<TestType>(),
          .buffer = has_momentum ? found.first.template mutable_data_ptr<TestType>() : nullptr});
  CHECK(same_bits(found.weight, expected.weight));
  CHECK(same_bits(found.first, expected.first));
  CHECK(same_bits(found.weight, State(kDtype).weight) == !may_update);
}

TEMPLATE_TEST_CASE("The scaling kernel has the bits of the CPU's", "", float, double) {
  const double factor = GENERATE(1.0, 0.3);
  const at::Tensor expected = values_of(8, 1000, c10::CppTypeToScalarType<TestType>::value);
  const at::Tensor found = expected.clone();
  const at::Tensor by = at::full({}, factor, at::kDouble);
  device::Operator<void(const at::Tensor&, const at::Tensor&)>("dtrain::scale_")(expected, by);
  // By fewer threads than elements, and by more.
  const unsigned blocks = GENERATE(3u, 5u);
  testing::start_on_threads(blocks, kThreads, run_each<ScaleBody<TestType>>, std::int64_t{1000},
                            ScaleBody<TestType>{.factor = by.const_data_ptr<double>(),
                                                .values = found.mutable_data_ptr<TestType>()});
  CHECK(same_bits(found, expected));
}

TEMPLATE_TEST_CASE("The kernel that adds the parts of ranks has the bits of the CPU's", "", float,
                   double, at::BFloat16, at::Half, std::int64_t, std::uint8_t) {
  const std::int64_t ranks = GENERATE(1, 2, 3, 6, 8, 12);
  CAPTURE(ranks);
  constexpr std::int64_t kCount = 100;
  constexpr auto kDtype = c10::CppTypeToScalarType<TestType>::value;
  const at::Tensor parts = values_of(9, ranks * kCount, kDtype).view({ranks, kCount});
  if (at::isFloatingType(kDtype)) parts[ranks / 2][7].fill_(kNoNumber);
  std::vector<const std::byte*> inputs;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    inputs.push_back(static_cast<const std::byte*>(parts[rank].const_data_ptr()));
  }
  const at::Tensor expected = at::empty({kCount}, parts.options());
  const at::Tensor found = at::empty({kCount}, parts.options());
  const auto reduce = [&](comm::ReduceOp op) {
    comm::reduce_in_tree_order(inputs, static_cast<std::byte*>(expected.mutable_data_ptr()), kCount,
                               parts.scalar_type(), op);
  };
  const auto* data = parts.const_data_ptr<TestType>();
  auto* output = found.mutable_data_ptr<TestType>();
  reduce(comm::ReduceOp::sum);
  run(kCount, TreeReduceBody<TestType, false>{data, kCount, ranks, output});
  CHECK(same_bits(found, expected));
  reduce(comm::ReduceOp::max);
  run(kCount, TreeReduceBody<TestType, true>{data, kCount, ranks, output});
  CHECK(same_bits(found, expected));
}

}  // namespace
}  // namespace dtrain::cuda
