#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "dtrain/data/batch.h"

namespace dtrain::data::microbatches_test {
namespace {

// Numbers that ranks first .. first + count - 1 compute in their microbatches, all or one.
std::vector<std::int64_t> numbers(MicrobatchDeal deal, std::int64_t first, std::int64_t count,
                                  std::int64_t only = -1) {
  std::vector<std::int64_t> found;
  for (deal.rank = first; deal.rank < first + count; ++deal.rank) {
    for (const auto id : base::first_ids<MicrobatchId>(deal.grad_accum)) {
      if (only < 0 || id == MicrobatchId(only)) found.push_back(deal.number_of(id));
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Consecutive, from a multiple of their count: a subtree of a binary tree.
void check_run(const std::vector<std::int64_t>& found) {
  const auto count = static_cast<std::int64_t>(found.size());
  for (std::int64_t i = 0; i < count; ++i) {
    CHECK(found[static_cast<std::size_t>(i)] == found.front() + i);
  }
  CHECK(found.front() % count == 0);
}

TEST_CASE("Every microbatch is computed once, whatever the deal") {
  for (const std::int64_t ranks : {1, 2, 3, 4, 6, 8, 12}) {
    for (const std::int64_t grad_accum : {1, 2, 3, 4, 5, 8}) {
      for (std::int64_t interleave = 1; interleave <= ranks; ++interleave) {
        if (ranks % interleave != 0) continue;
        INFO(ranks << " ranks x " << grad_accum << ", interleaved by " << interleave);
        const auto all = numbers({.grad_accum = grad_accum, .interleave = interleave}, 0, ranks);
        CHECK(all.front() == 0);
        CHECK(all.size() == static_cast<std::size_t>(ranks * grad_accum));
        check_run(all);
      }
    }
  }
}

TEST_CASE(
    "What is summed together first is a run of neighbours, and so is what it becomes part of") {
  for (const std::int64_t ranks : {2, 4, 8}) {
    for (const std::int64_t grad_accum : {1, 2, 4}) {
      for (const std::int64_t interleave : {1, 2, 4, 8}) {
        if (interleave > ranks) continue;
        const MicrobatchDeal deal{.grad_accum = grad_accum, .interleave = interleave};
        INFO(ranks << " ranks x " << grad_accum << ", interleaved by " << interleave);
        for (std::int64_t first = 0; first < ranks; first += interleave) {
          for (std::int64_t index = 0; index < grad_accum; ++index) {
            check_run(numbers(deal, first, interleave, index));
          }
          check_run(numbers(deal, first, interleave));
        }
      }
    }
  }
}

TEST_CASE("Neighbours compute neighbouring microbatches, or a rank consecutive ones") {
  CHECK(numbers({.grad_accum = 3, .interleave = 1}, 1, 1) == std::vector<std::int64_t>{3, 4, 5});
  CHECK(numbers({.grad_accum = 3, .interleave = 2}, 1, 1) == std::vector<std::int64_t>{1, 3, 5});
  CHECK(numbers({.grad_accum = 2, .interleave = 2}, 3, 1) == std::vector<std::int64_t>{5, 7});
}

}  // namespace
}  // namespace dtrain::data::microbatches_test
