#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>

#include "dtrain/base/philox.h"
#include "dtrain/metrics/tensor_memory.h"
#include "dtrain/param/parameter_spec.h"
#include "support/ids.h"
#include "support/oracles/rounding.h"

namespace dtrain::param::initialise_test {
namespace {

using testing::matrix;

at::Tensor initialised(const ParameterSpec& spec, std::uint64_t seed,
                       at::ScalarType dtype = at::kFloat) {
  const at::Tensor storage = at::zeros(spec.shape, at::TensorOptions().dtype(dtype));
  initialise(spec, seed, storage);
  return storage;
}

TEST_CASE("Initial values have the requested moments, within five deviations") {
  const at::Tensor values = initialised(matrix("w", 500, 1000), 1).to(at::kDouble) / 0.02;
  const auto count = static_cast<double>(values.numel());
  const double unit = 5 / std::sqrt(count);
  CHECK(std::abs(values.mean().item<double>()) < unit);
  CHECK(std::abs(values.square().mean().item<double>() - 1) < unit * std::sqrt(2.0));
  CHECK(std::abs(values.pow(3).mean().item<double>()) < unit * std::sqrt(15.0));
  CHECK(std::abs(values.pow(4).mean().item<double>() - 3) < unit * std::sqrt(96.0));
  // Adjacent values, which share Philox counters, are uncorrelated.
  const at::Tensor flat = values.view({-1});
  const at::Tensor products = flat.slice(0, 0, -1) * flat.slice(0, 1);
  CHECK(std::abs(products.mean().item<double>()) < unit);
}

TEST_CASE("An element's value depends on seed, name and exported index alone") {
  // The rule of docs/guide/model.md, for element 6 of "ab": counter 1, second pair, cosine.
  std::uint64_t hash = 14695981039346656037U;
  for (const unsigned char c : {'a', 'b'}) hash = (hash ^ c) * 1099511628211U;
  const auto words =
      base::philox({1, 0, static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32)},
                   base::philox_key(9, base::RandomPurpose::initialisation));
  const double u = (words[2] + 0.5) / 4294967296.0;
  const double angle = 2 * std::numbers::pi * words[3] / 4294967296.0;
  const double expected = 0.02 * std::sqrt(-2 * std::log(u)) * std::cos(angle);
  const at::Tensor values = initialised(matrix("ab", 3, 4), 9);
  // Computed in float64 and rounded once.
  CHECK(values[1][2].item<float>() ==
        Approx(expected).epsilon(testing::rounding_bound(at::kFloat, 1.01)));
}

TEST_CASE("Initial values do not depend on the storage order") {
  const ParameterSpec exported{
      .name = "encoder", .shape = {2, 5, 3}, .export_view = {2, 5, 3}, .export_order = {0, 1, 2}};
  const ParameterSpec neuron_major{
      .name = "encoder", .shape = {6, 5}, .export_view = {2, 3, 5}, .export_order = {0, 2, 1}};
  CHECK(at::equal(exported_view(neuron_major, initialised(neuron_major, 4)),
                  initialised(exported, 4)));
}

TEST_CASE("Initial values do not depend on the parameter's total size") {
  CHECK(at::equal(initialised(matrix("w", 3, 7), 4),
                  initialised(matrix("w", 9, 7), 4).slice(0, 0, 3)));
}

/// Splits `spec` into slices of these sizes along `dim`, and initializes each separately.
std::vector<at::Tensor> slices_of(const ParameterSpec& spec, std::int64_t dim,
                                  const std::vector<std::int64_t>& sizes) {
  std::vector<at::Tensor> slices;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    ParameterSpec slice = spec;
    std::int64_t& held = slice.shape[static_cast<std::size_t>(dim)];
    slice.cut = TensorCut{.dim = dim, .begin = begin, .whole = held};
    held = size;
    begin += size;
    slices.push_back(initialised(slice, 4));
  }
  return slices;
}

TEST_CASE("Slices have the values of the whole: inside heads, across heads, along columns") {
  const ParameterSpec encoder{
      .name = "encoder", .shape = {21, 5}, .export_view = {3, 7, 5}, .export_order = {0, 2, 1}};
  const at::Tensor whole = initialised(encoder, 4);
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{7, 14}, {3, 4, 2, 5, 7}, {2, 9, 10}, {1, 19, 1}}) {
    CHECK(at::equal(at::cat(slices_of(encoder, 0, sizes), 0), whole));
  }
  const ParameterSpec decoder = matrix("decoder", 21, 5);
  CHECK(at::equal(at::cat(slices_of(decoder, 0, {2, 9, 10}), 0), initialised(decoder, 4)));
  const ParameterSpec head = matrix("lm_head", 5, 18);
  CHECK(at::equal(at::cat(slices_of(head, 1, {6, 7, 5}), 1), initialised(head, 4)));
}

TEST_CASE("Initial values of joined dims are those of the exported matrix, whole or by heads") {
  const ParameterSpec exported = matrix("c_attn", 5, 24);
  const ParameterSpec by_heads{.name = "c_attn",
                               .shape = {24, 5},
                               .export_view = {4, 3, 2, 5},
                               .export_order = {3, 1, 0, 2},
                               .joined_dims = 3};
  const at::Tensor whole = initialised(by_heads, 4);
  CHECK(at::equal(exported_view(by_heads, whole), initialised(exported, 4)));
  CHECK(at::equal(at::cat(slices_of(by_heads, 0, {6, 12, 6}), 0), whole));
}

TEST_CASE("A slice of a parameter larger than memory can be initialized") {
  // A terabyte in float32, of which this rank holds one row.
  constexpr std::int64_t kRows = std::int64_t{1} << 30;
  ParameterSpec spec = matrix("w", 1, 256);
  spec.export_view = {kRows, 256};
  spec.cut = TensorCut{.dim = 0, .begin = kRows - 1, .whole = kRows};
  const at::Tensor row = initialised(spec, 4);
  CHECK(row.abs().max().item<double>() > 0.02);
}

TEST_CASE("Both halves of the seed and the name change the values") {
  const at::Tensor base = initialised(matrix("w", 4, 4), 4);
  CHECK(at::equal(initialised(matrix("w", 4, 4), 4), base));
  CHECK_FALSE(at::equal(initialised(matrix("w", 4, 4), 5), base));
  CHECK_FALSE(at::equal(initialised(matrix("w", 4, 4), 4 + (std::uint64_t{1} << 32)), base));
  CHECK_FALSE(at::equal(initialised(matrix("v", 4, 4), 4), base));
}

TEST_CASE("A float64 parameter starts from the float32 values") {
  const at::Tensor wide = initialised(matrix("w", 10, 10), 4, at::kDouble);
  CHECK(wide.scalar_type() == at::kDouble);
  CHECK(at::equal(wide, initialised(matrix("w", 10, 10), 4).to(at::kDouble)));
}

TEST_CASE("Values of float32 storage are drawn in place") {
  metrics::install_counting_allocator();
  const at::Tensor storage = at::zeros({500, 1000}, at::kFloat);
  metrics::restart_peak();
  const metrics::MemoryUse before = metrics::memory_use();
  initialise(matrix("w", 500, 1000), 4, storage);
  CHECK(metrics::memory_use().peak == before.current);
  CHECK(at::equal(storage, initialised(matrix("w", 500, 1000), 4, at::kDouble).to(at::kFloat)));
}

}  // namespace
}  // namespace dtrain::param::initialise_test
