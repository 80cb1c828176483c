#include "dtrain/base/activity.h"

#include <catch2/catch.hpp>
#include <optional>

namespace dtrain::base::activity_test {
namespace {

TEST_CASE("Phases entered within a long one do not end it") {
  Activity activity;
  activity.finish_step(12);
  activity.enter("the backward pass", 3);
  CHECK(activity.describe() == "in the backward pass, block 3, of step 13");
  CHECK_FALSE(activity.is_long());
  {
    const LongPhase saving(activity, "saving");
    activity.enter("the forward pass", 0);  // the check before a save
    CHECK(activity.is_long());
    CHECK(activity.describe() == "in saving after step 12");
    {
      const LongPhase reading(activity, "reading the data");
      CHECK(activity.describe() == "in reading the data after step 12");
    }
    CHECK(activity.describe() == "in saving after step 12");
  }
  CHECK_FALSE(activity.is_long());
  CHECK(activity.describe() == "in the forward pass, block 0, of step 13");
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
