// Compares each tensor-parallel primitive with autograd of the whole.
#include "dtrain/parallel/tensor/splits.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <vector>

#include "support/oracles/rounding.h"
#include "support/ranks/local_ranks.h"

namespace dtrain::parallel::splits_test {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType dtype = at::kDouble) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kDouble).to(dtype);
}

at::Tensor leaf(const at::Tensor& values) { return values.detach().clone().requires_grad_(); }

model::TensorPart part(std::int64_t size, std::int64_t parts, std::int64_t r) {
  return model::TensorCoordinate{.index = r, .size = parts}.part_of(size);
}

/// Returns rank r's slice of a tensor in `parts` slices along dim.
at::Tensor part_of(const at::Tensor& whole, std::int64_t dim, std::int64_t parts, std::int64_t r) {
  const auto [begin, count] = part(whole.size(dim), parts, r);
  return whole.narrow(dim, begin, count).contiguous();
}

/// Returns the results of each rank's body, by rank.
std::vector<Tensors> on_ranks(std::int64_t size,
                              const std::function<Tensors(comm::ProcessGroup&)>& body) {
  std::vector<Tensors> results(static_cast<std::size_t>(size));
  testing::on_threads(size, [&](comm::World& world) {
    const auto group = testing::group_of_all(world);
    results[static_cast<std::size_t>(world.rank())] = body(*group);
    testing::group_of_all(world)->barrier();  // keeps memory that another rank still reads
  });
  return results;
}

/// The largest error of sums of up to 24 products over up to four ranks, over the sum of their
/// magnitudes. 16 bits are summed in float32; a rank's product, two more gradients of it and the
/// sum over ranks are rounded. The expected values are float64's.
double sum_bound(at::ScalarType dtype) {
  constexpr double kTerms = 24 + 4;
  const bool is_low = at::isReducedFloatingType(dtype);
  return testing::rounding_bound(at::kDouble, kTerms) +
         testing::rounding_bound(is_low ? at::kFloat : dtype, kTerms) +
         (is_low ? testing::rounding_bound(dtype, 4) : 0);
}

/// magnitudes: what the same sums of magnitudes are.
void check_sum(const at::Tensor& found, const at::Tensor& expected, const at::Tensor& magnitudes,
               at::ScalarType dtype) {
  const at::Tensor error = (found.to(at::kDouble) - expected).abs();
  CHECK((error <= sum_bound(dtype) * magnitudes).all().item<bool>());
}

/// A sum and its gradients in float64, of the values or of their magnitudes.
template <typename Reference>
std::array<Tensors, 2> exact(const Tensors& inputs, const Reference& reference) {
  Tensors wide;
  Tensors magnitudes;
  for (const at::Tensor& input : inputs) {
    wide.push_back(leaf(input.to(at::kDouble)));
    magnitudes.push_back(leaf(input.to(at::kDouble).abs()));
  }
  return {reference(wide), reference(magnitudes)};
}

TEST_CASE("A column split gives its outputs, and the gradient of all uses of x summed over ranks") {
  const std::int64_t ranks = GENERATE(2, 3, 4);
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t inputs = GENERATE(1, 2);  // shared by all weights, or one for each
  const at::Tensor x = random({inputs, 5, 3}, 1, dtype);
  const at::Tensor weight = random({2, 12, 3}, 2, dtype);
  const at::Tensor dy = random({2, 5, 12}, 3, dtype);
  const at::Tensor other = random({ranks, inputs, 5, 3}, 4, dtype);  // dx of each rank's other use

  const auto [expected, magnitudes] = exact({x, weight, dy, other}, [](const Tensors& in) {
    const at::Tensor y = at::matmul(in[0], in[1].mT());
    torch::autograd::backward({y, in[0] * in[3].detach().sum(0)},
                              {in[2].detach(), at::ones_like(in[0])});
    return Tensors{y.detach(), in[0].grad(), in[1].grad()};
  });

  const auto results = on_ranks(ranks, [&](comm::ProcessGroup& group) -> Tensors {
    const at::Tensor own_x = leaf(x);
    const at::Tensor own_weight = leaf(part_of(weight, 1, ranks, group.rank()));
    const auto split = column_split({.group = group}, own_x, own_weight);
    torch::autograd::backward(
        {split.product, split.x},
        {part_of(dy, 2, ranks, group.rank()), other[group.rank()].to(split.x.scalar_type())});
    return {split.product.detach(), own_x.grad(), own_weight.grad()};
  });
  CAPTURE(ranks, dtype, inputs);
  for (std::int64_t r = 0; r < ranks; ++r) {
    const Tensors& found = results[static_cast<std::size_t>(r)];
    check_sum(found[0], part_of(expected[0], 2, ranks, r), part_of(magnitudes[0], 2, ranks, r),
              dtype);
    check_sum(found[1], expected[1], magnitudes[1], dtype);
    check_sum(found[2], part_of(expected[2], 1, ranks, r), part_of(magnitudes[2], 1, ranks, r),
              dtype);
    CHECK(found[1].scalar_type() == dtype);
    CHECK(at::equal(found[1], results[0][1]));
  }
}

TEST_CASE("A row split gives the sum over ranks, and every rank the gradient of its inputs") {
  const std::int64_t ranks = GENERATE(2, 3, 4);
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf);
  const bool shares_heads = GENERATE(false, true);
  const at::Tensor x = random({2, 5, 12}, 1, dtype);
  const at::Tensor weight = random({2, 12, 3}, 2, dtype);
  const at::Tensor dy = random({5, 3}, 3, dtype);

  const auto [expected, magnitudes] = exact({x, weight, dy}, [](const Tensors& in) {
    const at::Tensor y = at::bmm(in[0], in[1]).sum(0);
    torch::autograd::backward({y}, {in[2].detach()});
    return Tensors{y.detach(), in[0].grad(), in[1].grad()};
  });

  const auto results = on_ranks(ranks, [&](comm::ProcessGroup& group) -> Tensors {
    const at::Tensor own_x = leaf(part_of(x, 2, ranks, group.rank()));
    const at::Tensor own_weight = leaf(part_of(weight, 1, ranks, group.rank()));
    const ProductSplit split{.group = group, .shares_heads = shares_heads};
    const at::Tensor sum = row_split(split, own_x, own_weight);
    torch::autograd::backward({sum}, {dy});
    return {sum.detach(), own_x.grad(), own_weight.grad()};
  });
  CAPTURE(ranks, dtype, shares_heads);
  for (std::int64_t r = 0; r < ranks; ++r) {
    const Tensors& found = results[static_cast<std::size_t>(r)];
    check_sum(found[0], expected[0], magnitudes[0], dtype);
    check_sum(found[1], part_of(expected[1], 2, ranks, r), part_of(magnitudes[1], 2, ranks, r),
              dtype);
    check_sum(found[2], part_of(expected[2], 1, ranks, r), part_of(magnitudes[2], 1, ranks, r),
              dtype);
    CHECK(found[0].scalar_type() == dtype);
    CHECK(at::equal(found[0], results[0][0]));
  }
}

// Partial sums that exceed 65,504 and cancel over two ranks: (h, rows, N) times (h, N, D).
struct Cancelling {
  at::Tensor left;  // of rank 0; rank 1 has its negative, a little less
  at::Tensor right;
};

Cancelling cancelling(bool within_head) {
  const std::int64_t heads = within_head ? 1 : 2;
  const std::int64_t neurons = within_head ? 2 : 1;
  const auto half = at::TensorOptions().dtype(at::kHalf);
  return {at::full({heads, 4, neurons}, 256.0, half), at::full({heads, neurons, 3}, 200.0, half)};
}

TEST_CASE("float16 partial sums may exceed its range if the full sum does not") {
  const bool within_head = GENERATE(false, true);
  const Cancelling parts = cancelling(within_head);
  const auto results = on_ranks(2, [&](comm::ProcessGroup& group) -> Tensors {
    const double factor = group.rank() == 0 ? 1 : -0.96875;
    const ProductSplit split{.group = group, .shares_heads = within_head};
    const at::Tensor sum = row_split(split, parts.left * factor, parts.right);
    // The same products in a column split's backward pass.
    const at::Tensor x = leaf(at::zeros({1, 4, 3}, parts.left.options()));
    const auto column = column_split(split, x, parts.right);
    torch::autograd::backward({column.product}, {parts.left * factor});
    return {sum, x.grad()};
  });
  for (const Tensors& found : results) {
    CHECK((found[0] == 3200).all().item<bool>());
    CHECK((found[1] == 3200).all().item<bool>());
  }
}

TEST_CASE("A split embedding finds each token's row on the rank that has it") {
  const std::int64_t ranks = GENERATE(2, 3, 4);
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf);
  const at::Tensor weight = random({8, 3}, 1, dtype);
  const at::Tensor ids = at::tensor({7, 0, 3, 3, 4, 1, 3, 6}, at::kLong).view({2, 4});
  const at::Tensor dy = random({2, 4, 3}, 2);
  const auto [expected, magnitudes] = exact({weight, dy}, [&](const Tensors& in) {
    torch::autograd::backward({at::embedding(in[0], ids)}, {in[1].detach()});
    return Tensors{in[0].grad()};
  });
  const auto results = on_ranks(ranks, [&](comm::ProcessGroup& group) -> Tensors {
    const at::Tensor own = leaf(part_of(weight, 0, ranks, group.rank()));
    const at::Tensor rows = split_embedding(group, own, ids, part(8, ranks, group.rank()).begin);
    torch::autograd::backward({rows}, {dy.to(rows.scalar_type())});
    return {rows.detach(), own.grad()};
  });
  for (std::int64_t r = 0; r < ranks; ++r) {
    const Tensors& found = results[static_cast<std::size_t>(r)];
    CHECK(at::equal(found[0].to(at::kDouble), at::embedding(weight.to(at::kDouble), ids)));
    CHECK(found[0].scalar_type() == (dtype == at::kDouble ? at::kDouble : at::kFloat));
    check_sum(found[1], part_of(expected[0], 0, ranks, r), part_of(magnitudes[0], 0, ranks, r),
              dtype);
  }
}

TEST_CASE("A split cross-entropy equals that of the whole logits, however large they are") {
  const std::int64_t ranks = GENERATE(2, 3, 4);
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kFloat);
  const double offset = GENERATE(0.0, 3000.0, -3000.0);  // beyond exp's range
  const at::Tensor logits = (random({9, 8}, 1) * 5 + offset).to(dtype);
  const at::Tensor targets = at::tensor({0, 7, 3, 4, 2, 5, 1, 6, 0}, at::kLong);
  const at::Tensor dy = random({9}, 2, dtype);
  const at::Tensor wide = leaf(logits.to(at::kDouble));
  const at::Tensor expected = at::cross_entropy_loss(wide, targets, {}, at::Reduction::None);
  torch::autograd::backward({expected}, {dy.to(at::kDouble)});
  const auto results = on_ranks(ranks, [&](comm::ProcessGroup& group) -> Tensors {
    const at::Tensor own = leaf(part_of(logits, 1, ranks, group.rank()));
    const at::Tensor losses =
        split_cross_entropy(group, own, targets, part(8, ranks, group.rank()).begin);
    torch::autograd::backward({losses}, {dy});
    return {losses.detach(), own.grad()};
  });
  // A logit less the largest one, an exponential, a sum over eight, a logarithm and a difference. An
  // error of a logit, whatever its size, is one of the loss and of each probability's logarithm.
  const double absolute =
      testing::rounding_bound(dtype, 1 + 1 + 8 + 1 + 1) * (1 + logits.abs().max().item<double>());
  const at::Tensor scale = dy.to(at::kDouble).abs().unsqueeze(1);
  for (std::int64_t r = 0; r < ranks; ++r) {
    const Tensors& found = results[static_cast<std::size_t>(r)];
    CHECK((found[0] - expected.detach()).abs().max().item<double>() <= absolute);
    const at::Tensor error = (found[1] - part_of(wide.grad(), 1, ranks, r)).abs();
    CHECK((error <= absolute * scale).all().item<bool>());
  }
}

TEST_CASE("A NaN logit makes its token's loss NaN, on every rank") {
  const at::Tensor logits = random({2, 4}, 1);
  logits[1][2].fill_(NAN);
  const at::Tensor targets = at::zeros({2}, at::kLong);
  const auto results = on_ranks(2, [&](comm::ProcessGroup& group) -> Tensors {
    const at::Tensor own = part_of(logits, 1, 2, group.rank());
    return {split_cross_entropy(group, own, targets, group.rank() * 2)};
  });
  for (const Tensors& found : results) {
    CHECK(std::isfinite(found[0][0].item<double>()));
    CHECK(std::isnan(found[0][1].item<double>()));
  }
}

}  // namespace
}  // namespace dtrain::parallel::splits_test
