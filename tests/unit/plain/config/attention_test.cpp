#include <catch2/catch.hpp>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/family.h"

namespace dtrain::config::attention_test {
namespace {

constexpr std::int64_t kWidth = 256;
constexpr std::int64_t kNeurons = 8192;

std::int64_t chunk_for(std::int64_t seq_len, Dtype dtype = Dtype::bfloat16) {
  MachineConfig machine;
  machine.param_dtype = dtype;
  const DeviceRates rates = device_rates(machine);
  return bdh::fastest_chunk(
      kWidth, kNeurons,
      {.seq_len = seq_len, .rates = &rates, .value_bytes = dtype == Dtype::bfloat16 ? 2 : 4});
}

TEST_CASE("On a device short sequences attend in full, long ones in chunks of many positions") {
  CHECK(chunk_for(512) == 0);
  CHECK(chunk_for(2048) == 0);
  CHECK(chunk_for(8192) == 1024);
  CHECK(chunk_for(65536) == 1024);
}

TEST_CASE("Slower products leave time for smaller chunks") {
  CHECK(chunk_for(8192, Dtype::float32) < chunk_for(8192, Dtype::bfloat16));
  CHECK(chunk_for(8192, Dtype::float32) > 0);
}

TEST_CASE("Only the ratio of a device's rates decides") {
  MachineConfig machine;
  machine.param_dtype = Dtype::bfloat16;
  DeviceRates rates = device_rates(machine);
  const auto chunk = [&] {
    return bdh::fastest_chunk(kWidth, kNeurons,
                              {.seq_len = 8192, .rates = &rates, .value_bytes = 2});
  };
  const std::int64_t given = chunk();
  rates = {rates.products / 3, rates.wide_products / 3, rates.bytes / 3};
  CHECK(chunk() == given);
  rates.bytes *= 16;
  CHECK(chunk() < given);
}

}  // namespace
}  // namespace dtrain::config::attention_test
