#include "dtrain/metrics/format.h"

#include <catch2/catch.hpp>

namespace dtrain::metrics::format_test {
namespace {

TEST_CASE("Bytes are told in the unit that leaves few digits") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes(std::int64_t{5} << 30) == "5.0 GiB");
  CHECK(format_bytes(std::int64_t{5000} << 40) == "5000.0 TiB");
}

TEST_CASE("Counts, durations and rates read as people write them") {
  CHECK(format_count(7) == "7");
  CHECK(format_count(425'984) == "425,984");
  CHECK(format_count(25'296'896) == "25,296,896");
  CHECK(format_duration(0.4) == "0:00");
  CHECK(format_duration(59.6) == "1:00");
  CHECK(format_duration(3723) == "1:02:03");
  CHECK(format_duration(-1) == "0:00");
  CHECK(format_rate(999) == "999");
  CHECK(format_rate(12'340) == "12.3k");
  CHECK(format_rate(1'234'567) == "1.23M");
}

}  // namespace
}  // namespace dtrain::metrics::format_test
