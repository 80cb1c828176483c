#include "dtrain/config/interval.h"

#include <catch2/catch.hpp>
#include <limits>

namespace dtrain::config {
namespace {

TEST_CASE("Times are read with their units") {
  CHECK(parse_duration("90") == 90.0);
  CHECK(parse_duration("0") == 0.0);
  CHECK(parse_duration("0.5s") == 0.5);
  CHECK(parse_duration("10m") == 600.0);
  CHECK(parse_duration("1h30m") == 5400.0);
  CHECK(parse_duration("2d1h1m1s") == 2 * 86400 + 3661.0);
}

TEST_CASE("What is no time is refused") {
  for (const char* text : {"", "m", "-5", "-5s", "1x", "1h30", "1h 30m", "nan", "inf", "1e3s",
                           "10 m", "99999999999d", "s10"}) {
    INFO(text);
    CHECK_FALSE(parse_duration(text).has_value());
  }
}

TEST_CASE("An interval without a unit counts steps") {
  CHECK(parse_interval("100")->steps == 100);
  CHECK(parse_interval("100")->seconds == 0);
  CHECK(parse_interval("10m")->seconds == 600);
  CHECK(parse_interval("10m")->steps == 0);
  CHECK(parse_interval("0")->is_never());
  CHECK(parse_interval("0s")->is_never());
  CHECK(parse_interval("0")->at_the_end);
  CHECK(parse_interval("none")->is_never());
  CHECK_FALSE(parse_interval("none")->at_the_end);
  for (const char* text : {"", "-1", "1.5", "ten", "10k", "99999999999999999999"}) {
    INFO(text);
    CHECK_FALSE(parse_interval(text).has_value());
  }
}

TEST_CASE("Sequences are a number or all") {
  CHECK(parse_sequences("1") == 1);
  CHECK(parse_sequences("2147483648") == std::int64_t{1} << 31);
  CHECK(parse_sequences("all") == std::numeric_limits<std::int64_t>::max());
  for (const char* text : {"", "0", "-1", "2147483649", "1.5", "ALL", "all ", "8 "}) {
    INFO(text);
    CHECK_FALSE(parse_sequences(text).has_value());
  }
}

}  // namespace
}  // namespace dtrain::config
