#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "dtrain/parallel/compress/internal/power_sgd.h"
#include "dtrain/parallel/compress/internal/scheme.h"
#include "dtrain/parallel/compress/internal/thin_products.h"
#include "dtrain/parallel/compress/internal/top_k.h"
#include "support/ids.h"
#include "support/oracles/rounding.h"
#include "support/ranks/local_ranks.h"
#include "support/values.h"

namespace dtrain::parallel::schemes_test {
namespace {

using testing::matrix;
using testing::operator""_p;
using testing::expect;
using testing::rounding_bound;
using testing::same_bits;
using testing::values_of;

Compression of(const char* scheme, std::int64_t min_elements) {
  return {.scheme = config::Compression::parse(scheme).value(), .min_elements = min_elements};
}

// Checks that parts cover every element of the shard's parameters once, from the end to the
// beginning.
void check_cover(const param::ArenaLayout& layout, param::ShardId shard,
                 const std::vector<GradientPart>& parts) {
  for (std::size_t i = 1; i < parts.size(); ++i) {
    CHECK(parts[i].range.end <= parts[i - 1].range.begin);
  }
  for (const param::ParameterId id : layout.parameters()) {
    const param::ElementRange own = layout.range_in(id, shard);
    std::int64_t covered = 0;
    for (const GradientPart& part : parts) {
      covered += std::max<std::int64_t>(0, intersection(own, part.range).size());
    }
    CHECK(covered == std::max<std::int64_t>(0, own.size()));
  }
}

TEST_CASE("Small neighbours are sent together, large parameters in parts of a million") {
  const param::ParameterSpecs specs{matrix("a", 10, 10), matrix("b", 10, 7),
                                    matrix("c", 1'500, 1'000), matrix("d", 3, 3)};
  const param::ArenaLayout layout(specs, {});
  const auto parts = gradient_parts(layout, param::ShardId(0), of("topk:0.01", 200));
  check_cover(layout, param::ShardId(0), parts);
  REQUIRE(parts.size() == 4);
  CHECK_FALSE(parts[0].is_compressed);
  CHECK(parts[1].is_compressed);
  CHECK(parts[1].size() == 1'500'000 - (1 << 20));
  CHECK(parts[2].size() == 1 << 20);
  CHECK_FALSE(parts[3].is_compressed);
  CHECK(parts[3].range.begin == layout.range(0_p).begin);
  CHECK(parts[3].range.end == layout.range(1_p).end);
}

TEST_CASE("A frozen parameter is in no part, and its neighbours are not merged") {
  const param::ParameterSpecs specs{matrix("a", 10, 10), matrix("frozen", 8, 8),
                                    matrix("c", 10, 10)};
  const param::ArenaLayout layout(specs, {.frozen = {1_p}});
  const auto parts = gradient_parts(layout, param::ShardId(0), of("topk:0.01", 200));
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].range == layout.range(2_p));
  CHECK(parts[1].range == layout.range(0_p));
}

TEST_CASE("A shard's whole rows form a matrix, partial rows are sent uncompressed") {
  const param::ParameterSpecs specs{matrix("a", 101, 100), matrix("b", 4, 4'000)};
  const param::ArenaLayout layout(specs, {.num_shards = 2});
  for (const param::ShardId shard : {param::ShardId(0), param::ShardId(1)}) {
    const auto parts = gradient_parts(layout, shard, of("powersgd:2", 0));
    check_cover(layout, shard, parts);
    for (const GradientPart& part : parts) {
      if (!part.is_compressed) continue;
      const param::ElementRange whole = layout.range(part.id);
      CHECK((part.range.begin - whole.begin) % part.columns == 0);
      CHECK(part.rows * part.columns == part.size());
      CHECK(2 * (part.rows + part.columns) < part.size());
    }
  }
  const auto whole =
      gradient_parts(param::ArenaLayout(specs, {}), param::ShardId(0), of("powersgd:1024", 0));
  for (const GradientPart& part : whole) CHECK_FALSE(part.is_compressed);
}

// Decodes top-k messages independently.
struct Entry {
  std::int64_t index = 0;
  float value = 0;
};

// Returns a message's values, without entries of value 0.
std::vector<Entry> entries_in(const at::Tensor& message) {
  const auto* bytes = message.const_data_ptr<std::uint8_t>();
  const std::int64_t count = message.numel() / 4;
  std::vector<Entry> entries;
  std::int64_t index = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t gap = 0;
    std::uint16_t upper = 0;
    std::memcpy(&gap, bytes + 2 * i, sizeof gap);
    std::memcpy(&upper, bytes + 2 * (count + i), sizeof upper);
    const std::uint32_t bits = std::uint32_t{upper} << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    index += gap;
    if (value != 0) entries.push_back({index, value});
  }
  return entries;
}

at::Tensor message_for(std::int64_t size, double ratio) {
  return at::zeros({TopK::message_bytes(size, ratio)}, at::kByte);
}

// Returns the n-th largest magnitude, counted from 1.
double nth_largest(const at::Tensor& values, std::int64_t n) {
  const at::Tensor sizes = values.abs().to(at::kDouble).contiguous();
  std::vector<double> all(sizes.const_data_ptr<double>(),
                          sizes.const_data_ptr<double>() + sizes.numel());
  std::nth_element(all.begin(), all.begin() + n - 1, all.end(), std::greater<>());
  return all[static_cast<std::size_t>(n - 1)];
}

TEST_CASE("The largest values are sent as bfloat16, the rest stays") {
  const std::int64_t size = GENERATE(100, 5'000, 400'000);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble);
  CAPTURE(size, dtype);
  const at::Tensor values = values_of(1, size, dtype);
  const at::Tensor before = values.clone();
  const at::Tensor message = message_for(size, 0.01);
  TopK::compress(values, 0.01, message);
  const std::vector<Entry> entries = entries_in(message);
  const std::int64_t count = size / 100;
  // For many values the threshold is estimated.
  const bool is_exact = size <= TopK::kExact;
  CHECK(std::ssize(entries) <= count);
  CHECK(std::ssize(entries) >= (is_exact ? count : count * 9 / 10));
  const double least = nth_largest(before, is_exact ? count : count * 3 / 2);
  at::Tensor sent = at::zeros_like(values);
  for (const Entry& entry : entries) {
    const double own = before[entry.index].item<double>();
    REQUIRE(std::abs(own) >= least);
    REQUIRE(std::abs(own - entry.value) <= std::abs(own) / 256);
    sent[entry.index] = entry.value;
  }
  CHECK(same_bits(values + sent, before));
  const at::Tensor sum = at::ones_like(values);
  TopK::decompress(message, sum);
  CHECK(same_bits(sum, at::ones_like(values) + sent));
}

TEST_CASE("Gaps of any width are bridged") {
  const at::Tensor values = at::zeros({300'000}, at::kFloat);
  const std::vector<std::int64_t> places{0, 1, 65'536, 131'072, 299'999};
  for (const std::int64_t place : places) values[place] = 1 + static_cast<double>(place % 7);
  const at::Tensor before = values.clone();
  const at::Tensor message = message_for(values.numel(), 5.0 / 300'000);
  TopK::compress(values, 5.0 / 300'000, message);
  std::vector<std::int64_t> found;
  for (const Entry& entry : entries_in(message)) found.push_back(entry.index);
  CHECK(found == places);
  CHECK(values.count_nonzero().item<std::int64_t>() == 0);
  const at::Tensor sum = at::zeros_like(values);
  TopK::decompress(message, sum);
  CHECK(same_bits(sum, before));
}

TEST_CASE("A message of zeros decodes to nothing") {
  const std::int64_t size = GENERATE(1, 64, 100'000);
  const at::Tensor values = at::zeros({size}, at::kFloat);
  const at::Tensor message = message_for(size, 0.01);
  TopK::compress(values, 0.01, message);
  CHECK(entries_in(message).empty());
  const at::Tensor sum = at::ones({size}, at::kFloat);
  TopK::decompress(message, sum);
  CHECK(same_bits(sum, at::ones({size}, at::kFloat)));
}

TEST_CASE("NaN reaches the sum") {
  const std::int64_t size = GENERATE(1'000, 100'000);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const at::Tensor values = values_of(0, size, at::kFloat);
    values[size / 2] = bad;
    const at::Tensor message = message_for(size, 0.01);
    TopK::compress(values, 0.01, message);
    const at::Tensor sum = at::zeros({size}, at::kFloat);
    TopK::decompress(message, sum);
    CHECK_FALSE(at::isfinite(sum).all().item<bool>());
  }
}

TEST_CASE("A message of one percent is one percent of the gradients' bytes") {
  CHECK(TopK::message_bytes(1'000'000, 0.01) == 4 * (10'000 + 15));
  CHECK(TopK::message_bytes(10, 0.001) == 4);
}

// Compares PowerSGD with projections that LibTorch computes.
constexpr std::int64_t kRanks = 3;

GradientPart matrix_part(std::int64_t rows, std::int64_t columns) {
  return {.range = {0, rows * columns}, .is_compressed = true, .rows = rows, .columns = columns};
}

at::Tensor gradient_of(const GradientPart& part, std::int64_t rank, std::int64_t step) {
  return values_of(rank + kRanks * step, part.size(), at::kDouble);
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

// Condition number: how much a basis of the columns magnifies rounding.
double condition_of(const at::Tensor& a) {
  const at::Tensor values = at::linalg_svdvals(a.to(at::kDouble));
  return (values.max() / values.min()).item<double>();
}

// U U^T M, where U is an orthonormal basis of the columns of A.
at::Tensor projected(const at::Tensor& a, const at::Tensor& m) {
  const at::Tensor u = std::get<0>(at::linalg_qr(a));
  return u.mm(u.t().mm(m));
}

TEST_CASE("The sum is projected by one step of power iteration, and the residual stays") {
  const auto [rows, columns] = GENERATE(std::pair(96, 40), std::pair(30, 70));
  const GradientPart part = matrix_part(rows, columns);
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
      scheme.commit();
      expect(!same_bits(scheme.factor(), factor), "a step that is kept leads on");
    }
    const at::Tensor kept = scheme.factor().clone();
    scheme.begin(gradient_of(part, world.rank(), 9));
    scheme.advance();
    scheme.finish(at::empty({part.size()}, at::kDouble));
    expect(same_bits(scheme.factor(), kept), "one that is not leaves all as it was");
  });
}

TEST_CASE("A matrix of the same rank is sent exactly, even after a step of zeros") {
  const GradientPart part = matrix_part(64, 48);
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
      scheme.commit();
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

TEST_CASE("The applied sum has equal bits on any CPU") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble);
  const auto [rows, columns] = GENERATE(std::pair(300, 96), std::pair(61, 50));
  const GradientPart part = matrix_part(rows, columns);
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
    scheme.commit();
    expect(same_bits(sum, product_by_hand(left, scheme.factor().t())), "of plain operations");
  });
}

TEST_CASE("Thin products have equal bits on any number of threads") {
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
}  // namespace dtrain::parallel::schemes_test
