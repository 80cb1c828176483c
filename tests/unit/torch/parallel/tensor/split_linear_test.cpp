// Linear maps that are split over the ranks of a tensor axis, and a Llama's layer made of them.
#include "dtrain/model/split_linear.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/model/llama/llama.h"
#include "dtrain/parallel/tensor/splits.h"
#include "support/oracles/rounding.h"
#include "support/ranks/local_ranks.h"

namespace dtrain::parallel::split_linear_test {
namespace {

using Tensors = std::vector<at::Tensor>;

/// A rank's place, without its operations.
class Place final : public model::TensorAxis {
 public:
  Place(std::int64_t own, std::int64_t all) : own_(own), all_(all) {}
  [[nodiscard]] std::int64_t index() const override { return own_; }
  [[nodiscard]] std::int64_t size() const override { return all_; }

 private:
  std::int64_t own_;
  std::int64_t all_;
};

/// Returns the results of each rank's body, by rank.
std::vector<Tensors> on_axis(std::int64_t size,
                             const std::function<Tensors(model::TensorAxis&)>& body) {
  std::vector<Tensors> results(static_cast<std::size_t>(size));
  testing::on_threads(size, [&](comm::World& world) {
    const mesh::MeshGroups groups(world, mesh::DeviceMesh({{mesh::Axis::tp, size}}));
    const std::unique_ptr<model::TensorAxis> axis = make_tensor_axis(groups);
    results[static_cast<std::size_t>(world.rank())] = body(*axis);
    testing::group_of_all(world)->barrier();  // keeps memory that another rank still reads
  });
  return results;
}

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kDouble).to(dtype);
}

at::Tensor leaf(const at::Tensor& values) { return values.detach().clone().requires_grad_(); }

// 7 hidden values are no multiple of the ranks.
at::Tensor part_of(const at::Tensor& whole, std::int64_t dim, const model::TensorAxis& axis) {
  const std::int64_t begin = whole.size(dim) * axis.index() / axis.size();
  const std::int64_t end = whole.size(dim) * (axis.index() + 1) / axis.size();
  return whole.narrow(dim, begin, end - begin).contiguous();
}

// Returns y = (x Wᵀ + b) Vᵀ, and the gradients of x, of the parts of W, b and V, and of a replicated
// W of the map x Wᵀ whose first outputs alone are used.
Tensors two_maps(model::TensorAxis& axis, const Tensors& whole) {
  const at::ScalarType dtype = whole[0].scalar_type();
  const at::Tensor x = leaf(whole[0]);
  const at::Tensor up = leaf(part_of(whole[1], 0, axis));
  const at::Tensor bias = leaf(part_of(whole[2], 0, axis));
  const at::Tensor down = leaf(part_of(whole[3], 1, axis));
  const at::Tensor shared = leaf(whole[1]);
  const at::Tensor input = axis.replicated(x);
  const at::Tensor hidden = model::column_linear(input, up, bias, dtype);
  const at::Tensor y = model::row_linear(axis, hidden, down);
  const at::Tensor other = model::column_linear(input, axis.replicated(shared), {}, dtype);
  torch::autograd::backward({y, part_of(other, 2, axis)},
                            {whole[4], part_of(at::ones_like(other), 2, axis)});
  return {y.detach(), x.grad(), up.grad(), bias.grad(), down.grad(), shared.grad()};
}

TEST_CASE("Split linear maps give the results and gradients of whole ones") {
  const std::int64_t ranks = GENERATE(2, 3);
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf);
  const Tensors whole{random({2, 5, 4}, 1, dtype), random({7, 4}, 2, dtype), random({7}, 3, dtype),
                      random({3, 7}, 4, dtype), random({2, 5, 3}, 5, dtype)};
  Tensors wide;
  Tensors positive;
  for (const at::Tensor& each : whole) {
    wide.push_back(each.to(at::kDouble));
    positive.push_back(wide.back().abs());
  }
  model::TensorAxis one;
  const Tensors expected = two_maps(one, wide);
  const Tensors magnitudes = two_maps(one, positive);
  const auto results =
      on_axis(ranks, [&](model::TensorAxis& axis) { return two_maps(axis, whole); });
  CAPTURE(ranks, dtype);
  // At most a bias, 4 + 7 + 3 products in a row of sums, a sum over 3 ranks, and as many conversions.
  const double bound =
      testing::rounding_bound(dtype, 32) + testing::rounding_bound(at::kDouble, 32);
  const auto check = [&](const at::Tensor& found, const at::Tensor& exact,
                         const at::Tensor& magnitude) {
    CHECK(found.scalar_type() == dtype);
    const at::Tensor error = (found.to(at::kDouble) - exact).abs();
    CHECK((error <= bound * magnitude).all().item<bool>());
  };
  constexpr std::int64_t kWhole = -1;
  constexpr std::array kSplitDims{kWhole,          kWhole,          std::int64_t{0},
                                  std::int64_t{0}, std::int64_t{1}, kWhole};
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const Place place(rank, ranks);
    const Tensors& found = results[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < kSplitDims.size(); ++i) {
      CAPTURE(i);
      const auto own = [&](const at::Tensor& all) {
        return kSplitDims[i] == kWhole ? all : part_of(all, kSplitDims[i], place);
      };
      check(found[i], own(expected[i]), own(magnitudes[i]));
    }
    CHECK(at::equal(found[0], results[0][0]));
  }
}

// Two ranks' partial sums of two products, 102400 and -99200, exceed 65504 and sum to 3200.
TEST_CASE("float16 linear maps sum over ranks what exceeds its range") {
  const auto half = at::TensorOptions().dtype(at::kHalf);
  const auto results = on_axis(2, [&](model::TensorAxis& axis) -> Tensors {
    const double factor = axis.index() == 0 ? 1 : -0.96875;
    const at::Tensor left = at::full({4, 2}, 256.0 * factor, half);
    const at::Tensor sum = model::row_linear(axis, left, at::full({3, 2}, 200.0, half));
    // The same products in a column map's backward pass.
    const at::Tensor x = leaf(at::zeros({4, 3}, half));
    const at::Tensor product =
        model::column_linear(axis.replicated(x), at::full({2, 3}, 200.0, half), {}, at::kHalf);
    torch::autograd::backward({product}, {left});
    return {sum, x.grad()};
  });
  for (const Tensors& found : results) {
    CHECK((found[0] == 3200).all().item<bool>());
    CHECK((found[1] == 3200).all().item<bool>());
  }
}

// The layer's output is 1 + 3200: its MLP has four hidden values of 256, which its last map multiplies
// by 200, twice, and by -193.75, twice. Attention is 0.
TEST_CASE("A split float16 Llama stays finite where partial sums of its MLP do not") {
  constexpr model::llama::LlamaSizes kSizes{.layers = 1,
                                            .width = 4,
                                            .heads = 2,
                                            .kv_heads = 1,
                                            .head_dim = 2,
                                            .intermediate = 4,
                                            .vocab = 8};
  const auto half = at::TensorOptions().dtype(at::kHalf);
  const auto value_of = [&](const param::ParameterSpec& spec, const model::TensorAxis& axis) {
    const auto ends_with = [&](const char* end) { return spec.name.ends_with(end); };
    double value = 0;
    if (spec.kind == param::ParameterKind::norm) value = 1;
    if (ends_with("gate_proj.weight") || ends_with("up_proj.weight")) value = 4;
    if (ends_with("down_proj.weight")) value = axis.index() == 0 ? 200 : -193.75;
    return at::full(spec.shape, value, half);
  };
  const auto results = on_axis(2, [&](model::TensorAxis& axis) -> Tensors {
    const at::NoGradGuard no_grad;
    const auto model =
        model::llama::make_llama(kSizes, /*seq_len=*/3, {.index = axis.index(), .size = 2});
    const model::ParameterReader read = [&](param::ParameterId id) {
      return value_of(model->parameters[id], axis);
    };
    const model::Tap tap;
    const model::BlockContext context{.targets = {}, .use = read, .tensor_axis = axis, .tap = tap};
    return {model->blocks[model::BlockId(1)]->forward(at::ones({1, 3, 4}, half), context)};
  });
  // 3201 lies between the float16 numbers 3200 and 3202.
  for (const Tensors& found : results) CHECK((found[0] - 3201).abs().max().item<double>() <= 1);
}

}  // namespace
}  // namespace dtrain::parallel::split_linear_test
