#include "dtrain/config/pipeline.h"

#include <catch2/catch.hpp>

namespace dtrain::config {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("A pipeline's schedule is gpipe, 1f1b or interleaved:V") {
  CHECK(parse_schedule_pp("gpipe")->kind == PipelineKind::gpipe);
  CHECK(parse_schedule_pp("1f1b")->kind == PipelineKind::one_f_one_b);
  CHECK(parse_schedule_pp("interleaved:3") ==
        PipelineSetting{.kind = PipelineKind::interleaved, .chunks = 3});
  for (const char* text : {"gpipe", "1f1b", "interleaved:12"}) {
    CHECK(parse_schedule_pp(text)->text() == text);
  }
  for (const char* text : {"", "1F1B", "interleaved", "interleaved:", "interleaved:1",
                           "interleaved:-2", "interleaved:2x", "interleaved:2 "}) {
    INFO(text);
    CHECK_FALSE(parse_schedule_pp(text));
    CHECK_THROWS_WITH(require_schedule_pp(text), Contains("--schedule-pp: found"));
  }
}

TEST_CASE("A pipeline's split is a list of numbers") {
  CHECK(require_pp_split("").empty());
  CHECK(require_pp_split("7") == std::vector<std::int64_t>{7});
  CHECK(require_pp_split("3,5,4") == std::vector<std::int64_t>{3, 5, 4});
  for (const char* text : {",", "3,", ",3", "3,,4", "3, 5", "a", "3,-1", "3.5"}) {
    INFO(text);
    CHECK_THROWS_WITH(require_pp_split(text), Contains("--pp-split: found"));
  }
}

}  // namespace
}  // namespace dtrain::config
