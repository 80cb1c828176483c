#include <catch2/catch.hpp>
#include <limits>

#include "dtrain/base/text.h"

namespace readable_test {
namespace {

using dtrain::base::readable_time;

TEST_CASE("Times are told in the units that people use") {
  CHECK(readable_time(0.00002) == "1 ms");
  CHECK(readable_time(0.0351) == "36 ms");
  CHECK(readable_time(0.0999) == "0.1 s");
  CHECK(readable_time(0.82) == "0.8 s");
  CHECK(readable_time(9.96) == "10 s");
  CHECK(readable_time(59.6) == "1 min");
  CHECK(readable_time(200) == "3 min 20 s");
  CHECK(readable_time(600) == "10 min");
  CHECK(readable_time(7500) == "2 h 5 min");
  CHECK(readable_time(3600 * 100) == "4 d 4 h");
}

TEST_CASE("No time is negative or nonsense") {
  CHECK(readable_time(-0.001) == "0 s");
  CHECK(readable_time(-1e9) == "0 s");
  CHECK(readable_time(std::numeric_limits<double>::quiet_NaN()) == "0 s");
  CHECK_FALSE(readable_time(std::numeric_limits<double>::infinity()).empty());
}

}  // namespace
}  // namespace readable_test
