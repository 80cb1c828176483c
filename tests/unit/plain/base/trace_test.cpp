#include "dtrain/base/trace.h"

#include <catch2/catch.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "dtrain/base/activity.h"

namespace dtrain::base::trace_test {
namespace {

// Directs spans of this thread to a trace while it exists.
class Kept {
 public:
  explicit Kept(std::size_t capacity) : trace(capacity) { Trace::of_thread() = &trace; }
  ~Kept() { Trace::of_thread() = nullptr; }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  Trace trace;
};

TEST_CASE("Spans are ordered by start and know their enclosing span") {
  Kept kept(10);
  {
    const Span step("step", TracePart::step, {"step", 7});
    { const Span first("forward", TracePart::forward, {"block", 1}, {"microbatch", 2}); }
    const Span second("backward", TracePart::backward);
    const Span inner("wait", TracePart::wait);
  }
  const auto& spans = kept.trace.spans();
  REQUIRE(spans.size() == 4);
  CHECK(spans[0].name == "step");
  CHECK(spans[0].first.value == 7);
  CHECK(spans[1].second.key == "microbatch");
  CHECK(spans[0].parent == -1);
  CHECK(spans[1].parent == 0);
  CHECK(spans[2].parent == 0);
  CHECK(spans[3].parent == 2);
  CHECK(spans[1].end <= spans[2].begin);
  for (const TraceSpan& span : spans) {
    CHECK(span.end >= span.begin);
    CHECK(span.end <= spans[0].end);
  }
}

TEST_CASE("A full trace counts lost spans and still closes the enclosing ones") {
  Kept kept(2);
  {
    const Span outer("outer", TracePart::step);
    { const Span inner("inner", TracePart::data); }
    { const Span lost("lost", TracePart::data); }
    const Span around("lost too", TracePart::data);
    const Span within("lost too", TracePart::data);
  }
  REQUIRE(kept.trace.spans().size() == 2);
  CHECK(kept.trace.num_lost() == 3);
  CHECK(kept.trace.spans()[0].end >= kept.trace.spans()[1].end);
}

TEST_CASE("An open span has an end before its start") {
  Kept kept(2);
  const Span open("open", TracePart::step);
  CHECK(kept.trace.spans()[0].end < kept.trace.spans()[0].begin);
}

TEST_CASE("Spans go to their own thread's trace, if it has one") {
  Kept kept(2);
  std::thread([] { const Span span("other", TracePart::data); }).join();
  CHECK(kept.trace.spans().empty());
  Trace::of_thread() = nullptr;
  { const Span span("nowhere", TracePart::data); }
  CHECK(kept.trace.spans().empty());
}

TEST_CASE("Phases entered within a long one do not end it") {
  Activity activity;
  activity.finish_step(12);
  activity.enter("backward", 3);
  CHECK(activity.describe() == "in backward, block 3, of step 13");
  {
    const LongPhase saving(activity, "saving");
    activity.enter("forward", 0);  // the check before a save
    CHECK(activity.describe() == "in saving after step 12");
    {
      const LongPhase reading(activity, "reading");
      CHECK(activity.describe() == "in reading after step 12");
    }
    CHECK(activity.describe() == "in saving after step 12");
  }
  CHECK(activity.describe() == "in forward, block 0, of step 13");
}

TEST_CASE("Entering and leaving a phase counts as progress once, and a long phase always") {
  Activity activity;
  CHECK_FALSE(activity.has_advanced());
  activity.enter("forward");
  CHECK(activity.has_advanced());
  CHECK_FALSE(activity.has_advanced());
  std::optional<LongPhase> phase(std::in_place, activity, "saving");
  {
    const LongPhase reading(activity, "reading");
    CHECK(activity.has_advanced());
  }
  CHECK(activity.has_advanced());
  CHECK(activity.has_advanced());
  phase.reset();
  CHECK(activity.has_advanced());
  CHECK_FALSE(activity.has_advanced());
}

}  // namespace
}  // namespace dtrain::base::trace_test
