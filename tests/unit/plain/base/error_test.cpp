#include "dtrain/base/error.h"

#include <catch2/catch.hpp>
#include <cstdint>

namespace error_test {
namespace {

using namespace dtrain::base;

TEST_CASE("An error carries its message and the exit status of its kind") {
  try {
    fail(ErrorKind::data, "file {} holds {} tokens", "x", 3);
    FAIL("fail returned");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "file x holds 3 tokens");
    CHECK(error.exit_status() == 3);
    CHECK(name_of(error.kind()) == "data");
  }
}

TEST_CASE("Exit statuses are the documented ones") {
  CHECK(static_cast<int>(ErrorKind::usage) == 2);
  CHECK(static_cast<int>(ErrorKind::comm) == 4);
  CHECK(static_cast<int>(ErrorKind::timeout) == 5);
  CHECK(static_cast<int>(ErrorKind::checkpoint) == 6);
  CHECK(static_cast<int>(ErrorKind::numerics) == 7);
  CHECK(static_cast<int>(ErrorKind::memory) == 8);
  CHECK(static_cast<int>(ErrorKind::interrupted) == 9);
  CHECK(static_cast<int>(ErrorKind::internal) == 70);
}

TEST_CASE("A failed check names its condition, place and values") {
  const int width = 3;
  CHECK_NOTHROW([&] { DTRAIN_CHECK(width == 3); }());
  CHECK_THROWS_WITH([&] { DTRAIN_CHECK(width == 4, "width {}", width); }(),
                    Catch::Contains("width == 4") && Catch::Contains("error_test.cpp") &&
                        Catch::Contains("width 3"));
}

TEST_CASE("Divisions with a remainder are refused") {
  CHECK(div_exact(12, 4) == 3);
  CHECK_THROWS_AS(div_exact(13, 4), Error);
  CHECK_THROWS_AS(div_exact(1, 0), Error);
}

TEST_CASE("Conversions that change the value are refused") {
  CHECK(narrow<std::uint8_t>(255) == 255);
  CHECK_THROWS_AS(narrow<std::uint8_t>(256), Error);
  CHECK_THROWS_AS(narrow<std::uint32_t>(-1), Error);
  CHECK_THROWS_AS(narrow<std::int32_t>(std::uint32_t{1} << 31), Error);
}

}  // namespace
}  // namespace error_test
