// Reads messages of top-k by hand.
#include "dtrain/parallel/compress/top_k.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/values.h"

namespace dtrain::parallel::top_k_test {
namespace {

using testing::same_bits;
using testing::values_of;

struct Entry {
  std::int64_t index = 0;
  float value = 0;
};

// What a message says, its entries without a value left out.
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

// The size of the n-th largest value, counted from 1.
double nth_largest(const at::Tensor& values, std::int64_t n) {
  const at::Tensor sizes = values.abs().to(at::kDouble).contiguous();
  std::vector<double> all(sizes.const_data_ptr<double>(),
                          sizes.const_data_ptr<double>() + sizes.numel());
  std::nth_element(all.begin(), all.begin() + n - 1, all.end(), std::greater<>());
  return all[static_cast<std::size_t>(n - 1)];
}

TEST_CASE("The largest values travel as bfloat16, and what does not travel stays") {
  const std::int64_t size = GENERATE(100, 5'000, 400'000);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble);
  CAPTURE(size, dtype);
  const at::Tensor values = values_of(1, size, dtype);
  const at::Tensor before = values.clone();
  const at::Tensor message = message_for(size, 0.01);
  TopK::compress(values, 0.01, message);
  const std::vector<Entry> entries = entries_in(message);
  const std::int64_t count = size / 100;
  // Of many values the smallest size that counts is estimated.
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

TEST_CASE("Gaps of any width are crossed") {
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

TEST_CASE("Without anything to send a message says nothing") {
  const std::int64_t size = GENERATE(1, 64, 100'000);
  const at::Tensor values = at::zeros({size}, at::kFloat);
  const at::Tensor message = message_for(size, 0.01);
  TopK::compress(values, 0.01, message);
  CHECK(entries_in(message).empty());
  const at::Tensor sum = at::ones({size}, at::kFloat);
  TopK::decompress(message, sum);
  CHECK(same_bits(sum, at::ones({size}, at::kFloat)));
}

TEST_CASE("What is no number reaches the sum") {
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

}  // namespace
}  // namespace dtrain::parallel::top_k_test
