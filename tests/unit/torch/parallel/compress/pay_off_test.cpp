// The start table's bandwidths: which schemes are listed, from which bytes.
#include "dtrain/parallel/compress/pay_off.h"

#include <catch2/catch.hpp>

#include "dtrain/parallel/compress/scheme.h"
#include "support/specs.h"

namespace dtrain::parallel {
namespace {

constexpr std::int64_t kElements = 80 * 40 + 50;

param::ParameterSpecs specs() {
  param::ParameterSpec matrix = testing::spec("matrix", 80 * 40);
  matrix.shape = matrix.export_view = {80, 40};
  matrix.export_order = {0, 1};
  return {testing::spec("small", 50), matrix};
}

std::vector<PayOff> measured(const char* scheme, at::ScalarType whole, std::int64_t num_ranks) {
  const param::ArenaLayout layout(specs());
  return measure_pay_offs(
      {.layout = layout,
       .compression = {.scheme = config::Compression::parse(scheme).value(), .min_elements = 100},
       .codec = travel_in(whole)},
      num_ranks, at::kCPU);
}

std::vector<std::string> names_of(const std::vector<PayOff>& pay_offs) {
  std::vector<std::string> names;
  for (const PayOff& each : pay_offs) names.push_back(each.scheme);
  return names;
}

TEST_CASE("The run's scheme comes first, then others that save bytes; padding counts nowhere") {
  const auto found = measured("fp16", at::kFloat, 2);
  CHECK(names_of(found) == std::vector<std::string>{"fp16", "bf16", "topk:0.01", "powersgd:4"});
  for (const PayOff& each : found) {
    CHECK(each.bytes_whole == bytes_in_ring(4 * kElements, 2));
    CHECK(each.pays_below() > 0);
  }
  CHECK(found.front().bytes_sent == bytes_in_ring(2 * 80 * 40 + 4 * 50, 2));
  // On 500 ranks 1 % of the values, sent to each, are more bytes than a ring's.
  CHECK(names_of(measured("fp16", at::kFloat, 500)) ==
        std::vector<std::string>{"fp16", "bf16", "powersgd:4"});
}

TEST_CASE("A run that compresses nothing learns what would pay") {
  const auto found = measured("none", at::kFloat, 2);
  CHECK(names_of(found) ==
        std::vector<std::string>{"none", "bf16", "fp16", "topk:0.01", "powersgd:4"});
  CHECK(found.front().bytes_sent == bytes_in_ring(4 * kElements, 2));
  CHECK(found.front().bytes_whole == found.front().bytes_sent);
}

TEST_CASE("Factors that are larger than rounded gradients never pay") {
  const auto found = measured("powersgd:20", at::kBFloat16, 2);
  CHECK(names_of(found) == std::vector<std::string>{"powersgd:20", "topk:0.01", "powersgd:4"});
  CHECK(found.front().bytes_sent > found.front().bytes_whole);
  CHECK(found.front().pays_below() == 0);
}

}  // namespace
}  // namespace dtrain::parallel
