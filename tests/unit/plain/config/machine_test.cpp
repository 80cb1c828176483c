#include "dtrain/config/machine.h"

#include <catch2/catch.hpp>

namespace dtrain::config {
namespace {

TEST_CASE("Sizes are bytes, or have a unit of 1000 or of 1024") {
  CHECK(parse_bytes("0") == 0);
  CHECK(parse_bytes("4096") == 4096);
  CHECK(parse_bytes("500MB") == 500'000'000);
  CHECK(parse_bytes("2GiB") == std::int64_t{2} << 30);
  CHECK(parse_bytes("1.5kib") == 1536);
  CHECK(parse_bytes("3tb") == 3'000'000'000'000);
  for (const char* text : {"", "GB", "-1", "2 GB", "2G", "2XB", "2GiBs", "nan", "inf", "1e3",
                           "9999999TB", "0.5", "0.0001kB"}) {
    INFO(text);
    CHECK_FALSE(parse_bytes(text));
  }
}

TEST_CASE("Recompute is none, level, every:K or auto") {
  using Kind = RecomputeSetting::Kind;
  CHECK(parse_recompute("none")->kind == Kind::none);
  CHECK(parse_recompute("level")->kind == Kind::level);
  CHECK(parse_recompute("auto")->kind == Kind::automatic);
  CHECK(parse_recompute("every:3")->kind == Kind::every);
  CHECK(parse_recompute("every:3")->group_size == 3);
  for (const char* text : {"", "all", "every", "every:", "every:0", "every:-1", "every:2x"}) {
    INFO(text);
    CHECK_FALSE(parse_recompute(text));
  }
}

}  // namespace
}  // namespace dtrain::config
