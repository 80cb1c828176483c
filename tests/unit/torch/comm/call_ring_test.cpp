// What a group reports to dtrun about its calls.
#include "dtrain/comm/call_ring.h"

#include <catch2/catch.hpp>

namespace dtrain::comm::call_ring_test {
namespace {

CallRecord call_of(std::string_view op, std::int64_t peer, at::ScalarType dtype,
                   std::int64_t count) {
  CallRecord call;
  call.op = op;
  call.peer = peer;
  call.dtype = dtype;
  call.count = count;
  return call;
}

std::string line_of(const CallRing& ring) {
  std::string line = call_line(ring.records(), "dp of 2 ranks from 0", 1);
  const auto begin = line.find('.');  // the time
  return begin == std::string::npos ? line : line.substr(0, begin - 1) + line.substr(begin + 4);
}

TEST_CASE("A group reports its oldest unfinished call, else its last") {
  CallRing ring;
  CHECK(line_of(ring) == "call 0 none 0 ended 0 -1 dp of 2 ranks from 0\n");
  const auto first = ring.add(call_of("all_reduce", -1, at::kFloat, 10));
  const auto second = ring.add(call_of("recv", 0, at::kByte, 7));
  CHECK(line_of(ring) == "call 1 all_reduce 40 queued  1 dp of 2 ranks from 0\n");
  ring.start(first);
  CHECK(line_of(ring) == "call 1 all_reduce 40 open  1 dp of 2 ranks from 0\n");
  ring.finish(first, 40);
  ring.start(second);
  CHECK(line_of(ring) == "call 2 recv 7 open  0 dp of 2 ranks from 0\n");
  ring.finish(second, 0);
  CHECK(line_of(ring) == "call 2 recv 7 ended  -1 dp of 2 ranks from 0\n");
  ring.start(ring.add(call_of("barrier", -1, at::kByte, 0)));
  ring.fail(3);
  CHECK(line_of(ring) == "call 3 barrier 0 open  1 dp of 2 ranks from 0\n");
}

TEST_CASE("Every call that ends during keeping is kept, beyond the capacity of the ring") {
  constexpr std::int64_t kCalls = 2 * CallRing::kCapacity;
  CallRing ring;
  ring.finish(ring.add(call_of("barrier", -1, at::kByte, 0)), 1);
  const auto early = ring.add(call_of("send", 1, at::kByte, 3));
  ring.begin_keeping(kCalls + 1);
  ring.start(early);
  ring.finish(early, 3);
  for (std::int64_t i = 0; i < kCalls; ++i) {
    const auto number = ring.add(call_of("all_reduce", -1, at::kFloat, 10));
    ring.start(number);
    ring.finish(number, 40);
  }
  const auto late = ring.add(call_of("barrier", -1, at::kByte, 0));
  ring.finish(late, 5);
  const KeptCalls kept = ring.end_keeping();
  REQUIRE(std::ssize(kept.records) == kCalls + 1);
  CHECK(kept.num_lost == 1);
  CHECK(kept.records.front().op == "send");
  CHECK(kept.records.back().number == static_cast<std::uint64_t>(kCalls) + 2);
  CHECK(kept.records.back().ended >= kept.records.back().started);
  CHECK(kept.counters.calls == kCalls + 1);  // those that began meanwhile
  CHECK(kept.counters.bytes_sent == 3 + 40 * kCalls + 5);
  ring.finish(ring.add(call_of("barrier", -1, at::kByte, 0)), 1);
  CHECK(ring.end_keeping().records.empty());
}

}  // namespace
}  // namespace dtrain::comm::call_ring_test
