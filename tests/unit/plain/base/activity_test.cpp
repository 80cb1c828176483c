#include <catch2/catch.hpp>
#include <optional>

#include "dtrain/base/launcher_link.h"

namespace dtrain::base::activity_test {
namespace {

TEST_CASE("Phases entered within a long one do not end it") {
  Activity activity;
  activity.finish_step(12);
  activity.enter("backward", 3);
  CHECK(activity.describe() == "in backward, block 3, of step 13");
  CHECK_FALSE(activity.is_long());
  {
    const LongPhase saving(activity, "saving");
    activity.enter("forward", 0);  // the check before a save
    CHECK(activity.is_long());
    CHECK(activity.describe() == "in saving after step 12");
    {
      const LongPhase reading(activity, "reading");
      CHECK(activity.describe() == "in reading after step 12");
    }
    CHECK(activity.describe() == "in saving after step 12");
  }
  CHECK_FALSE(activity.is_long());
  CHECK(activity.describe() == "in forward, block 0, of step 13");
}

TEST_CASE("Entering and leaving a phase counts as progress") {
  Activity activity;
  std::optional<LongPhase> phase(std::in_place, activity, "saving");
  const auto inside = activity.count();
  phase.reset();
  CHECK(activity.count() > inside);
}

}  // namespace
}  // namespace dtrain::base::activity_test
