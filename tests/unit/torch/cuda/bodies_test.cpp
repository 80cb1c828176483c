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
#include "dtrain/model/bdh/internal/chunked_attention.h"
#include "dtrain/model/bdh/internal/rope.h"
#include "dtrain/model/dropout.h"
#include "dtrain/optim/norm_cell.h"
#include "support/gpu_on_threads.h"
#include "support/values.h"

namespace dtrain::cuda::bodies_test {
namespace {

using testing::same_bits;
using testing::values_of;

template <typename Body>
void run(const Body& body) {
  for (std::int64_t index = 0; index < body.size(); ++index) prepared(body)(index);
}

// The same values, `skipped` elements after an address that packs may have.
at::Tensor moved(const at::Tensor& values, std::int64_t skipped) {
  return at::empty({values.numel() + skipped}, values.options())
      .slice(0, skipped)
      .view(values.sizes())
      .copy_(values);
}

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

TEMPLATE_TEST_CASE("The dropout kernel has the bits of the CPU's", "", float, double, at::BFloat16,
                   at::Half) {
  const auto [neurons, first_neuron] =
      GENERATE(std::pair<std::int64_t, std::int64_t>{128, 64}, std::pair{128, 40}, std::pair{72, 0},
               std::pair{10, 60}, std::pair{1, 63});
  const std::int64_t skipped = GENERATE(0, 1);
  // Threads for fewer blocks of neurons than there are, and for more.
  const unsigned blocks = GENERATE(1u, 5u);
  CAPTURE(neurons, first_neuron, skipped, blocks);
  constexpr std::int64_t kHeads = 3;
  const std::vector<std::int64_t> shape{kHeads, 2, 9, neurons};
  const at::Tensor x = moved(
      values_of(1, kHeads * 2 * 9 * neurons, c10::CppTypeToScalarType<TestType>::value).view(shape),
      skipped);
  const model::DropoutOffsets place{
      .seed = 77,
      .level = 3,
      .first_sample = at::scalar_tensor((std::int64_t{1} << 32) - 1, at::kLong),
      .first_neuron = first_neuron};
  const at::Tensor out = moved(at::full_like(x, 12345), skipped);
  const DropoutBody<TestType> body{
      .rows = {2, 9, neurons, place.level, place.first_sample.const_data_ptr<std::int64_t>(),
               first_neuron},
      .num_rows = kHeads * 2 * 9,
      .key = base::philox_key(place.seed, base::RandomPurpose::dropout),
      .rule = model::drop_rule<TestType>(0.3),
      .in = x.const_data_ptr<TestType>(),
      .out = out.mutable_data_ptr<TestType>()};
  testing::start_on_threads(blocks, kThreads, run_dropout<TestType>, body);
  CHECK(same_bits(out, model::dropout(x, 0.3, place)));
}

TEMPLATE_TEST_CASE("The rotation kernel has the bits of the CPU's", "", at::BFloat16, at::Half) {
  // Positions that are whole packs, and not.
  const std::int64_t positions = GENERATE(8, 7);
  const std::int64_t skipped = GENERATE(0, 1);
  CAPTURE(positions, skipped);
  const at::Tensor v =
      moved(values_of(2, 2 * 3 * positions * 12, c10::CppTypeToScalarType<TestType>::value)
                .view({2, 3, positions, 12}),
            skipped);
  const at::Tensor table = model::bdh::rope_rotations(
      5, 5 + positions, {.whole = 32, .first = 4, .count = 12}, at::kFloat);
  const at::Tensor out = moved(at::empty_like(v), skipped);
  run(RopeBody<TestType>{.in = v.const_data_ptr<TestType>(),
                         .out = out.mutable_data_ptr<TestType>(),
                         .table = table.const_data_ptr<float>(),
                         .rows = 6,
                         .length = positions * 12,
                         .direction = 1});
  CHECK(same_bits(out, model::bdh::rope_rotate(v, table)));
}

TEMPLATE_TEST_CASE("The mirroring kernel has the bits of the CPU's, which are those of ATen", "",
                   float, double, at::BFloat16, at::Half) {
  // Less than a tile, whole tiles, and more.
  const std::int64_t length = GENERATE(1, 5, 32, 64, 71);
  CAPTURE(length);
  const at::Tensor matrices =
      values_of(11, 2 * length * length, c10::CppTypeToScalarType<TestType>::value)
          .view({2, length, length});
  if (length > 1) matrices[1][1][0].fill_(-0.0);
  matrices[1][0].fill_(kNoNumber);  // on the diagonal and above
  const at::Tensor found = at::full_like(matrices, kNoNumber);
  const std::int64_t tiles = (length + kMirrorTile - 1) / kMirrorTile;
  testing::start_on_threads(static_cast<unsigned>(2 * tiles * tiles), kThreads,
                            run_mirror_lower<TestType>, matrices.const_data_ptr<TestType>(),
                            found.mutable_data_ptr<TestType>(), length);
  CHECK(same_bits(found, model::bdh::mirror_lower(matrices)));
  const at::Tensor lower = matrices.tril(-1);
  CHECK(same_bits(found, lower + lower.mT()));
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
  explicit State(at::ScalarType dtype, std::int64_t skipped = 0)
      : weight(moved(values_of(4, 75, dtype), skipped)),
        gradient(moved(values_of(5, 75, dtype), skipped)),
        first(moved(values_of(6, 75, dtype), skipped)),
        second(moved(values_of(7, 75, dtype).square(), skipped)) {}
  at::Tensor weight, gradient, first, second;
};

TEMPLATE_TEST_CASE("The AdamW kernel has the bits of the CPU's", "", float, double) {
  const bool may_update = GENERATE(true, false);
  constexpr auto kDtype = c10::CppTypeToScalarType<TestType>::value;
  const State expected(kDtype);
  State found(kDtype, GENERATE(0, 1));
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
                                 .count = 75,
                                 .weight = found.weight.template mutable_data_ptr<TestType>(),
                                 .gradient = found.gradient.template const_data_ptr<TestType>(),
                                 .first = found.first.template mutable_data_ptr<TestType>(),
                                 .second = found.second.template mutable_data_ptr<TestType>()};
  run(body);
  CHECK(same_bits(found.weight, expected.weight));
  CHECK(same_bits(found.first, expected.first));
  CHECK(same_bits(found.second, expected.second));
  CHECK(same_bits(found.weight, State(kDtype).weight) == !may_update);
}

TEMPLATE_TEST_CASE("The SGD kernel has the bits of the CPU's", "", float, double) {
  const bool has_momentum = GENERATE(true, false);
  constexpr auto kDtype = c10::CppTypeToScalarType<TestType>::value;
  const State expected(kDtype);
  State found(kDtype, GENERATE(0, 1));
  const bool may_update = GENERATE(true, false);
  const at::Tensor rate = at::full({}, 1e-3, at::kDouble);
  const at::Tensor may = at::full({}, may_update, at::kBool);
  device::Operator<void(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                        const at::Tensor&, const at::Tensor&, double, double)>("dtrain::sgd_")(
      expected.weight, expected.gradient,
      has_momentum ? std::optional(expected.first) : std::nullopt, rate, may, 0.9, 0.1);
  run(SgdBody<TestType>{
      .momentum = 0.9,
      .weight_decay = 0.1,
      .learning_rate = rate.const_data_ptr<double>(),
      .may_update = may.const_data_ptr<bool>(),
      .count = 75,
      .weight = found.weight.template mutable_data_ptr<TestType>(),
      .gradient = found.gradient.template const_data_ptr<TestType>(),
      .buffer = has_momentum ? found.first.template mutable_data_ptr<TestType>() : nullptr});
  CHECK(same_bits(found.weight, expected.weight));
  CHECK(same_bits(found.first, expected.first));
  CHECK(same_bits(found.weight, State(kDtype).weight) == !may_update);
}

TEMPLATE_TEST_CASE("The scaling kernel has the bits of the CPU's", "", float, double) {
  const double factor = GENERATE(1.0, 0.3);
  const at::Tensor expected = values_of(8, 2003, c10::CppTypeToScalarType<TestType>::value);
  const at::Tensor found = moved(expected, GENERATE(0, 1));
  const at::Tensor by = at::full({}, factor, at::kDouble);
  device::Operator<void(const at::Tensor&, const at::Tensor&)>("dtrain::scale_")(expected, by);
  const ScaleBody<TestType> body{.factor = by.const_data_ptr<double>(),
                                 .count = 2003,
                                 .values = found.mutable_data_ptr<TestType>()};
  // By fewer threads than packs, and by more.
  const unsigned blocks = GENERATE(1u, 5u);
  testing::start_on_threads(blocks, kThreads, run_each<ScaleBody<TestType>>, body.size(), body);
  CHECK(same_bits(found, expected));
}

TEMPLATE_TEST_CASE("The kernel that adds the parts of ranks has the bits of the CPU's", "", float,
                   double, at::BFloat16, at::Half, std::int64_t, std::uint8_t) {
  const std::int64_t ranks = GENERATE(1, 2, 3, 6, 8, 12, 64);
  // Parts that are whole packs, and not.
  const std::int64_t count = GENERATE(104, 99);
  CAPTURE(ranks, count);
  constexpr auto kDtype = c10::CppTypeToScalarType<TestType>::value;
  const at::Tensor parts = values_of(9, ranks * count, kDtype).view({ranks, count});
  if (at::isFloatingType(kDtype)) parts[ranks / 2][7].fill_(kNoNumber);
  std::vector<const std::byte*> inputs;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    inputs.push_back(static_cast<const std::byte*>(parts[rank].const_data_ptr()));
  }
  const at::Tensor expected = at::empty({count}, parts.options());
  const at::Tensor found = at::empty({count}, parts.options());
  const auto reduce = [&](comm::ReduceOp op) {
    comm::reduce_in_tree_order(inputs, static_cast<std::byte*>(expected.mutable_data_ptr()), count,
                               parts.scalar_type(), op);
  };
  const auto* data = parts.const_data_ptr<TestType>();
  auto* output = found.mutable_data_ptr<TestType>();
  const auto check = [&]<int levels>() {
    reduce(comm::ReduceOp::sum);
    run(TreeReduceBody<TestType, false, levels>{data, count, ranks, output});
    CHECK(same_bits(found, expected));
    reduce(comm::ReduceOp::max);
    run(TreeReduceBody<TestType, true, levels>{data, count, ranks, output});
    CHECK(same_bits(found, expected));
  };
  check.template operator()<kFewLevels>();
  check.template operator()<kMaxLevels>();
}

TEST_CASE("A tree of the most ranks takes its last level") {
  const at::Tensor parts = at::ones({kMaxRanks, 1}, at::kLong);
  std::int64_t sum = 0;
  run(TreeReduceBody<std::int64_t, false, kMaxLevels>{parts.const_data_ptr<std::int64_t>(), 1,
                                                      kMaxRanks, &sum});
  CHECK(sum == kMaxRanks);
}

TEST_CASE("A divider divides all numbers of 32 bits") {
  constexpr std::int64_t kEnd = std::int64_t{1} << 32;
  const std::int64_t divisor =
      GENERATE_COPY(std::int64_t{1}, 2, 3, 7, 64, 641, 65537, kEnd / 2, kEnd / 2 + 1, kEnd - 1);
  const Divider by(divisor);
  const auto check = [&](std::int64_t number) {
    if (number < 0 || number >= kEnd) return;
    CAPTURE(divisor, number);
    CHECK(by(number).quotient == number / divisor);
    CHECK(by(number).remainder == number % divisor);
  };
  for (std::int64_t i = 0; i < 64; ++i) {
    const std::int64_t multiple = kEnd / 63 * i / divisor * divisor;
    for (const std::int64_t near : {-1, 0, 1}) check(multiple + near);
    check(kEnd - 1 - i);
  }
}

}  // namespace
}  // namespace dtrain::cuda::bodies_test
