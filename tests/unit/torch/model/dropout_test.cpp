#include "dtrain/model/dropout.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "support/values.h"
#include "unit/torch/model/naive_bdh.h"

namespace dtrain::model::dropout_test {
namespace {

const DropoutOffsets kPlace{
    .seed = 0x123456789ABCDEF0,
    .level = 3,
    .first_sample = at::scalar_tensor((std::int64_t{5} << 32) + 0xFFFFFFFE, at::kLong),
    .first_neuron = 24};

/// Dropout applied to ones: each element is 0 or the scale.
at::Tensor mask_by_hand(at::IntArrayRef shape, double probability, const DropoutOffsets& place) {
  at::Tensor mask = at::zeros(shape, at::TensorOptions().dtype(at::kDouble));
  auto out = mask.accessor<double, 4>();
  for (std::int64_t h = 0; h < shape[0]; ++h) {
    for (std::int64_t b = 0; b < shape[1]; ++b) {
      for (std::int64_t t = 0; t < shape[2]; ++t) {
        for (std::int64_t i = 0; i < shape[3]; ++i) {
          out[h][b][t][i] =
              testing::scalar_dropout({.seed = place.seed,
                                       .level = place.level,
                                       .sample = place.first_sample.item<std::int64_t>() + b,
                                       .position = t,
                                       .neuron = place.first_neuron + h * shape[3] + i},
                                      probability);
        }
      }
    }
  }
  return mask;
}

at::Tensor ones(at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
  return at::ones(shape, at::TensorOptions().dtype(dtype));
}

TEST_CASE("The mask follows the scalar rule, also for sample numbers beyond 32 bits") {
  // Heads whose size is not a multiple of 64 start within a block.
  const std::int64_t neurons = GENERATE(2, 6, 10, 64, 128, 130, 192, 300);
  const double probability = GENERATE(0.1, 0.5, 0.9);
  const std::vector<std::int64_t> shape{2, 4, 5, neurons};
  CHECK(at::equal(dropout(ones(shape), probability, kPlace),
                  mask_by_hand(shape, probability, kPlace)));
}

TEST_CASE("The mask does not depend on dtype, thread count or values") {
  const std::vector<std::int64_t> shape{3, 4, 50, 70};
  const at::Tensor expected = dropout(ones(shape), 0.25, kPlace);
  {
    const testing::Threads other(at::get_num_threads() == 1 ? 2 : 1);
    CHECK(at::equal(dropout(ones(shape), 0.25, kPlace), expected));
  }
  CHECK(at::equal(dropout(ones(shape, at::kFloat), 0.25, kPlace), expected.to(at::kFloat)));
  CHECK(at::equal(dropout(ones(shape) * -3, 0.25, kPlace), expected * -3));
}

TEST_CASE("16-bit dtypes have the same mask, and round the scaled value once") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  const std::vector<std::int64_t> shape{2, 3, 5, 70};
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{2});
  const at::Tensor x = at::randn(shape, generator).to(dtype).requires_grad_();
  const at::Tensor expected = dropout(x.to(at::kFloat), 0.1, kPlace).to(dtype);
  const at::Tensor found = dropout(x, 0.1, kPlace);
  CHECK(at::equal(found, expected));
  const at::Tensor gradient = torch::autograd::grad({found}, {x}, {at::ones_like(x)})[0];
  CHECK(at::equal(gradient, mask_by_hand(shape, 0.1, kPlace).to(dtype)));
}

// Dropout of `shape` in slices of `count` along `dim`, each with the offsets that `move` sets.
void check_parts(const std::vector<std::int64_t>& shape, std::int64_t dim, std::int64_t count,
                 const std::function<void(DropoutOffsets&, std::int64_t first)>& move) {
  const at::Tensor whole = dropout(ones(shape), 0.3, kPlace);
  std::vector<std::int64_t> part = shape;
  part[static_cast<std::size_t>(dim)] = count;
  for (std::int64_t first = 0; first < whole.size(dim); first += count) {
    DropoutOffsets place = kPlace;
    move(place, first);
    CHECK(at::equal(dropout(ones(part), 0.3, place), whole.narrow(dim, first, count)));
  }
}

TEST_CASE("Masks do not change if samples, heads or parts of a head are split over calls") {
  check_parts({2, 6, 7, 24}, 1, 2, [](DropoutOffsets& place, std::int64_t first) {
    place.first_sample = place.first_sample + first;
  });
  check_parts({4, 3, 7, 22}, 0, 2,
              [](DropoutOffsets& place, std::int64_t first) { place.first_neuron += first * 22; });
  for (const std::int64_t count : {2, 6, 30, 50}) {
    check_parts({1, 3, 7, 150}, 3, count,
                [](DropoutOffsets& place, std::int64_t first) { place.first_neuron += first; });
  }
}

TEST_CASE("Seed, level, sample and position each change the mask") {
  const std::vector<std::int64_t> shape{1, 1, 2, 64};
  const at::Tensor base = dropout(ones(shape), 0.5, kPlace);
  CHECK_FALSE(at::equal(base.select(2, 0), base.select(2, 1)));
  const auto changed = [&](auto change) {
    DropoutOffsets place = kPlace;
    change(place);
    return !at::equal(dropout(ones(shape), 0.5, place), base);
  };
  CHECK(changed([](DropoutOffsets& place) { place.seed += 1; }));
  CHECK(changed([](DropoutOffsets& place) { place.seed += std::uint64_t{1} << 40; }));
  CHECK(changed([](DropoutOffsets& place) { place.level += 1; }));
  CHECK(changed([](DropoutOffsets& place) { place.first_sample = place.first_sample + 1; }));
  CHECK(changed([](DropoutOffsets& place) {
    place.first_sample = place.first_sample + (std::int64_t{1} << 33);
  }));
  CHECK(changed([](DropoutOffsets& place) { place.first_neuron += 2; }));
}

TEST_CASE("The dropped fraction and the mean are as expected, within five deviations") {
  const double probability = GENERATE(0.1, 0.5);
  const at::Tensor mask = dropout(ones({4, 8, 64, 512}), probability, kPlace);
  const auto count = static_cast<double>(mask.numel());
  const double dropped = (mask == 0).sum().item<double>() / count;
  const double deviation = std::sqrt(probability * (1 - probability) / count);
  CHECK(std::abs(dropped - probability) < 5 * deviation + 1.0 / 65536);
  CHECK(std::abs(mask.mean().item<double>() - 1) < 5 * deviation / (1 - probability));
  // Neighbours are independent: both dropped with the square of the probability.
  const at::Tensor zero = mask == 0;
  const at::Tensor both = zero.narrow(3, 0, 511).logical_and(zero.narrow(3, 1, 511));
  CHECK(both.to(at::kDouble).mean().item<double>() ==
        Approx(probability * probability).margin(0.002));
}

TEST_CASE("The gradient passes through the same mask") {
  const at::Tensor x = ones({2, 3, 4, 10}).mul_(2).requires_grad_();
  const at::Tensor y = dropout(x, 0.4, kPlace);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{1});
  const at::Tensor upstream = at::randn(x.sizes(), generator, at::kDouble);
  const at::Tensor gradient = torch::autograd::grad({y}, {x}, {upstream})[0];
  CHECK(at::equal(gradient, upstream * mask_by_hand(x.sizes(), 0.4, kPlace)));
}

TEST_CASE("Probability 0 returns the tensor unchanged") {
  const at::Tensor x = ones({1, 1, 1, 4});
  CHECK(dropout(x, 0, kPlace).is_same(x));
}

}  // namespace
}  // namespace dtrain::model::dropout_test
