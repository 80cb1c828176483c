// Compares PowerSGD with projections that LibTorch computes.
#include "dtrain/parallel/compress/power_sgd.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>

#include "dtrain/parallel/compress/thin_products.h"
#include "support/local_ranks.h"
#include "support/rounding.h"
#include "support/values.h"

namespace dtrain::parallel::power_sgd_test {
namespace {

using testing::expect;
using testing::rounding_bound;
using testing::same_bits;
using testing::values_of;

constexpr std::int64_t kRanks = 3;

GradientPart matrix(std::int64_t rows, std::int64_t columns) {
  return {.range = {0, rows * columns}, .is_compressed = true, .rows = rows, .columns = columns};
}

at::Tensor gradient_of(const GradientPart& part, std::int64_t rank, std::int64_t step) {
  return values_of(rank + kRanks * step, part.size(), at::kDouble);
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

// Largest over smallest singular value: how much a basis of the columns magnifies rounding.
double condition_of(const at::Tensor& a) {
  const at::Tensor values = at::linalg_svdvals(a.to(at::kDouble));
  return (values.max() / values.min()).item<double>();
}

// U U^T M, where U is an orthonormal basis of the columns of A.
at::Tensor projected(const at::Tensor& a, const at::Tensor& m) {
  const at::Tensor u = std::get<0>(at::linalg_qr(a));
  return u.mm(u.t().mm(m));
}

TEST_CASE("The sum is projected to where one step of power iteration leads, and the rest stays") {
  const auto [rows, columns] = GENERATE(std::pair(96, 40), std::pair(30, 70));
  const GradientPart part = matrix(rows, columns);
  testing::on_threads(kRanks, [&](comm::World& world) {
    comm::ProcessGroup& group = world.control();
    PowerSgd scheme(part, 4, group, at::kDouble, param::private_memory);
    for (std::int64_t step = 0; step < 3; ++step) {
      const at::Tensor factor = scheme.factor().clone();
      at::Tensor all = at::zeros({part.rows, part.columns}, at::kDouble);
      for (std::int64_t rank = 0; rank < kRanks; ++rank) {
        all += gradient_of(part, rank, step).view({part.rows, part.columns});
      }
      const at::Tensor own = gradient_of(part, world.rank(), step);
      const at::Tensor values = own.clone();
      const at::Tensor sum = at::empty_like(own);
      scheme.begin(values);
      scheme.advance();
      scheme.finish(sum);
      const at::Tensor basis = all.mm(factor);
      // Products over rows and columns make the basis, and two more project, here and there.
      const auto terms = static_cast<double>(2 * 2 * (part.rows + part.columns));
      const double bound = rounding_bound(at::kDouble, terms) * condition_of(basis);
      expect(distance(sum.view_as(all), projected(basis, all)) <= bound, "the projected sum");
      const at::Tensor rest = own.view_as(all) - projected(basis, own.view_as(all));
      expect(distance(values.view_as(all), rest) <= bound, "what this rank did not send");
      scheme.keep();
      expect(!same_bits(scheme.factor(), factor), "a step that is kept leads on");
    }
    const at::Tensor kept = scheme.factor().clone();
    scheme.begin(gradient_of(part, world.rank(), 9));
    scheme.advance();
    scheme.finish(at::empty({part.size()}, at::kDouble));
    expect(same_bits(scheme.factor(), kept), "one that is not leaves all as it was");
  });
}

TEST_CASE("Of a matrix of that rank everything travels, after a step of nothing too") {
  const GradientPart part = matrix(64, 48);
  const at::Tensor left = values_of(0, 64 * 2, at::kFloat).view({64, 2});
  const at::Tensor right = values_of(1, 2 * 48, at::kFloat).view({2, 48});
  testing::on_threads(2, [&](comm::World& world) {
    PowerSgd scheme(part, 4, world.control(), at::kFloat, param::private_memory);
    const at::Tensor sum = at::empty({part.size()}, at::kFloat);
    for (int step = 0; step < 2; ++step) {
      const at::Tensor nothing = at::zeros({part.size()}, at::kFloat);
      scheme.begin(nothing);
      scheme.advance();
      scheme.finish(sum);
      scheme.keep();
      expect(sum.count_nonzero().item<std::int64_t>() == 0, "nothing arrives");
    }
    const at::Tensor own = left.mm(right).view(-1);
    const at::Tensor values = own.clone();
    scheme.begin(values);
    scheme.advance();
    scheme.finish(sum);
    // The same four products, in float32. A gradient of this rank has the condition of its factors.
    const double bound =
        rounding_bound(at::kFloat, 2 * (64 + 48)) * condition_of(left) * condition_of(right);
    expect(distance(sum, 2 * own) <= bound, "the whole sum");
    expect((values.norm() / own.norm()).item<double>() <= bound, "nothing is left");
  });
}

// Without fused multiply-adds, which some CPUs lack.
at::Tensor product_by_hand(const at::Tensor& left, const at::Tensor& right) {
  const at::Tensor product = at::zeros({left.size(0), right.size(1)}, left.options());
  for (std::int64_t k = 0; k < left.size(1); ++k) {
    product.add_(left.narrow(1, k, 1).mul(right.narrow(0, k, 1)));
  }
  return product;
}

TEST_CASE("The sum that ranks apply has the same bits on any CPU") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble);
  const auto [rows, columns] = GENERATE(std::pair(300, 96), std::pair(61, 50));
  const GradientPart part = matrix(rows, columns);
  testing::on_threads(2, [&](comm::World& world) {
    PowerSgd scheme(part, 5, world.control(), dtype, param::private_memory);
    const at::Tensor values = values_of(world.rank(), part.size(), dtype);
    const at::Tensor left = at::empty({rows, 5}, values.options());
    multiply(values.view({rows, columns}), scheme.factor(), left);
    world.control().all_reduce(left).wait();
    make_orthonormal(left);
    const at::Tensor sum = at::empty({rows, columns}, values.options());
    scheme.begin(values);
    scheme.advance();
    scheme.finish(sum.view(-1));
    scheme.keep();
    expect(same_bits(sum, product_by_hand(left, scheme.factor().t())), "of plain operations");
  });
}

TEST_CASE("Thin products have the same bits on any number of threads") {
  const at::Tensor matrix = values_of(0, 1'000 * 300, at::kFloat).view({1'000, 300});
  const at::Tensor thin = values_of(1, 300 * 4, at::kFloat).view({300, 4});
  const int before = at::get_num_threads();
  std::vector<at::Tensor> left;
  std::vector<at::Tensor> whole;
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    left.push_back(at::empty({1'000, 4}, at::kFloat));
    multiply(matrix, thin, left.back());
    make_orthonormal(left.back());
    const at::Tensor right = at::empty({300, 4}, at::kFloat);
    multiply(matrix.t(), left.back(), right);
    whole.push_back(matrix.clone());
    subtract_product(left.back(), right.t(), whole.back());
  }
  at::set_num_threads(before);
  CHECK(same_bits(left[0], left[1]));
  CHECK(same_bits(whole[0], whole[1]));
  const at::Tensor unit = left[0].to(at::kDouble);
  // Each product of two columns is a sum over 1,000 rows in float32.
  CHECK(distance(unit.t().mm(unit), at::eye(4, at::kDouble)) <= rounding_bound(at::kFloat, 1'000));
}

}  // namespace
}  // namespace dtrain::parallel::power_sgd_test
