// The order of addition, the cutting into slices and the call ring.
#include <algorithm>
#include <catch2/catch.hpp>

#include "dtrain/comm/call_ring.h"
#include "dtrain/comm/reduce.h"
#include "dtrain/comm/tree_order.h"
#include "support/oracles/tree_sum.h"

namespace dtrain::testing::comm_order_test {
namespace {

/// "((ab)(cd))": the additions as brackets.
std::string brackets(std::int64_t n) {
  std::vector<std::string> parts;
  for (std::int64_t i = 0; i < n; ++i) parts.emplace_back(1, static_cast<char>('a' + i));
  add_in_tree_order(n, [&](std::int64_t into, std::int64_t from) {
    auto& sum = parts[static_cast<std::size_t>(into)];
    sum = "(" + sum + parts[static_cast<std::size_t>(from)] + ")";
  });
  return n > 0 ? parts[0] : "";
}

TEST_CASE("Contributions are added in groups of the odd part, then as a binary tree") {
  CHECK(brackets(0) == "");
  CHECK(brackets(1) == "a");
  CHECK(brackets(2) == "(ab)");
  CHECK(brackets(3) == "((ab)c)");
  CHECK(brackets(4) == "((ab)(cd))");
  CHECK(brackets(5) == "((((ab)c)d)e)");
  CHECK(brackets(6) == "(((ab)c)((de)f))");
  CHECK(brackets(8) == "(((ab)(cd))((ef)(gh)))");
  CHECK(brackets(12) == "((((ab)c)((de)f))(((gh)i)((jk)l)))");
}

TEST_CASE("A stack of partial sums never grows beyond one slot per level of the tree") {
  for (const std::int64_t n : {1, 2, 3, 8, 12, 1024}) {
    int depth = 0;
    int deepest = 0;
    for (std::int64_t index = 0; index < n; ++index) {
      const auto step = comm::tree_step(index, n);
      depth += step.starts_slot ? 1 : 0;
      deepest = std::max(deepest, depth);
      depth -= step.merges;
    }
    CHECK(depth == 1);
    CHECK((std::int64_t{1} << (deepest - 1)) <= n / comm::tree_group_size(n));
  }
}

TEST_CASE("Slices begin at multiples of 64 elements and cover everything once") {
  for (const std::int64_t count : {0, 1, 63, 64, 65, 1000, 425'984}) {
    for (const std::int64_t slices : {1, 2, 3, 8, 100}) {
      CHECK(comm::slice_begin(count, slices, 0) == 0);
      CHECK(comm::slice_begin(count, slices, slices) == count);
      for (std::int64_t i = 0; i < slices; ++i) {
        const auto begin = comm::slice_begin(count, slices, i);
        CHECK(begin <= comm::slice_begin(count, slices, i + 1));
        CHECK((begin % 64 == 0 || begin == count));
      }
    }
  }
}

// Through the command line it would take as many processes as there are ranks.
TEST_CASE("A staging area holds a part of every rank's slice, however many ranks there are") {
  for (const std::int64_t ranks : {1, 2, 3, 2048, 2049, 4097, 1 << 20}) {
    for (const std::int64_t bytes : {1, 2, 4, 8}) {
      CAPTURE(ranks, bytes);
      CHECK(comm::staged_slice(ranks, bytes) >= comm::kSliceGrain);
      CHECK(comm::staged_slice(ranks, bytes) % comm::kSliceGrain == 0);
      CHECK(ranks * comm::staged_slice(ranks, bytes) * bytes <= comm::staging_bytes(ranks));
    }
  }
  CHECK(comm::staging_bytes(64) == 1 << 20);
}

TEST_CASE("The call ring keeps the last calls and counts all of them") {
  comm::CallRing ring;
  comm::CallRecord call;
  call.op = "all_reduce";
  call.dtype = at::kFloat;
  call.count = 10;
  constexpr auto kCapacity = static_cast<std::uint64_t>(comm::CallRing::kCapacity);
  for (std::uint64_t i = 1; i <= kCapacity + 5; ++i) {
    CHECK(ring.add(call) == i);
    ring.start(i);
    ring.finish(i, 40);
  }
  const auto last = ring.add(call);
  ring.start(last);
  ring.fail(1);  // long overwritten: must not touch the call now in its place
  const auto records = ring.records();
  REQUIRE(records.size() == kCapacity);
  CHECK(records.front().number == 7);
  CHECK(records.back().state == comm::CallState::running);
  CHECK(std::all_of(records.begin(), records.end() - 1, [](const comm::CallRecord& record) {
    return record.state == comm::CallState::done;
  }));
  CHECK(ring.counters().calls == static_cast<std::int64_t>(kCapacity) + 6);
  CHECK(ring.counters().bytes_sent == (static_cast<std::int64_t>(kCapacity) + 5) * 40);
  CHECK(describe(records.back()) == "call 262, all_reduce of 10 float32 (40 bytes)");
  call.dtype = at::kBFloat16;
  CHECK(describe(call) == "call 0, all_reduce of 10 bfloat16 (20 bytes)");
}

}  // namespace
}  // namespace dtrain::testing::comm_order_test
