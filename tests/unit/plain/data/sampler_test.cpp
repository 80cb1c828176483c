#include "dtrain/data/sampler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "dtrain/data/batch.h"

namespace dtrain::data::sampler_test {
namespace {

std::vector<std::int64_t> epoch_of(const SampleOrder& order, std::int64_t size,
                                   std::int64_t epoch) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < size; ++i) samples.push_back(order(epoch * size + i));
  return samples;
}

/// The chi-square statistic of counts against a uniform distribution, in standard deviations.
double excess(const std::vector<double>& counts, double expected, double degrees_of_freedom) {
  double statistic = 0;
  for (const double count : counts) {
    statistic += (count - expected) * (count - expected) / expected;
  }
  return (statistic - degrees_of_freedom) / std::sqrt(2 * degrees_of_freedom);
}

TEST_CASE("Every epoch visits every sample once, for any number of samples") {
  for (const std::int64_t size :
       {1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 64, 97, 1000, 4096, 4099, 65537}) {
    const SampleOrder order(size, 42);
    for (const std::int64_t epoch : {0, 1, 2, 1'000'000}) {
      INFO(size << " samples, epoch " << epoch);
      std::vector<int> visits(static_cast<std::size_t>(size));
      for (const std::int64_t sample : epoch_of(order, size, epoch)) {
        REQUIRE(sample >= 0);
        REQUIRE(sample < size);
        ++visits[static_cast<std::size_t>(sample)];
      }
      CHECK(visits == std::vector<int>(visits.size(), 1));
    }
  }
}

TEST_CASE("The largest number of samples is handled") {
  const std::int64_t size = std::int64_t{1} << 62;
  const SampleOrder order(size, 1);
  CHECK(order(0) < size);
  CHECK(order(size - 1) < size);
  CHECK(order(0) != order(1));
}

TEST_CASE("Epochs and seeds have different orders, and each order is reproducible") {
  const std::int64_t size = 1000;
  const auto first = epoch_of(SampleOrder(size, 1), size, 0);
  CHECK(first == epoch_of(SampleOrder(size, 1), size, 0));
  const std::uint64_t high_seed = std::uint64_t{1} << 40 | 1;
  for (const auto& other :
       {epoch_of(SampleOrder(size, 1), size, 1), epoch_of(SampleOrder(size, 2), size, 0),
        epoch_of(SampleOrder(size, high_seed), size, 0)}) {
    int same = 0;
    for (std::size_t i = 0; i < first.size(); ++i) same += first[i] == other[i] ? 1 : 0;
    CHECK(same < 10);  // unrelated orders have one on average
  }
}

TEST_CASE("Every order of few samples is equally likely") {
  for (const std::int64_t size : {2, 3, 4}) {
    INFO(size << " samples");
    double num_orders = 1;
    for (std::int64_t i = 2; i <= size; ++i) num_orders *= static_cast<double>(i);
    const SampleOrder order(size, 7);
    const std::int64_t epochs = 24'000;
    std::map<std::vector<std::int64_t>, double> seen;
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) ++seen[epoch_of(order, size, epoch)];
    std::vector<double> counts;
    for (const auto& entry : seen) counts.push_back(entry.second);
    CHECK(static_cast<double>(counts.size()) == num_orders);
    CHECK(excess(counts, static_cast<double>(epochs) / num_orders, num_orders - 1) < 5);
  }
}

TEST_CASE("Each sample comes equally often at each position") {
  for (const std::int64_t size : {5, 13, 16, 40}) {
    INFO(size << " samples");
    const SampleOrder order(size, 3);
    const std::int64_t epochs = 20'000;
    std::vector<double> counts(static_cast<std::size_t>(size * size));
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
      for (std::int64_t i = 0; i < size; ++i) {
        ++counts[static_cast<std::size_t>(i * size + order(epoch * size + i))];
      }
    }
    const auto side = static_cast<double>(size);
    CHECK(std::abs(excess(counts, static_cast<double>(epochs) / side, (side - 1) * (side - 1))) <
          5);
  }
}

TEST_CASE("Consecutive samples of an epoch are uncorrelated in the text") {
  const std::int64_t size = 34'000;
  const auto samples = epoch_of(SampleOrder(size, 5), size, 0);
  std::vector<double> distances(20);
  for (std::size_t i = 1; i < samples.size(); ++i) {
    const std::int64_t distance = (samples[i] - samples[i - 1] + size) % size;
    ++distances[static_cast<std::size_t>(distance * 20 / size)];
  }
  CHECK(excess(distances, static_cast<double>(size - 1) / 20, 19) < 5);
}

TEST_CASE("The first epoch has no shift; later epochs have different ones, below a sequence") {
  const SampleOrder order(10, 3);
  std::vector<std::int64_t> shifts;
  for (std::int64_t epoch = 0; epoch < 200; ++epoch) {
    shifts.push_back(order.shift(10 * epoch, 64));
    CHECK(order.shift(10 * epoch + 9, 64) == shifts.back());
    CHECK((0 <= shifts.back() && shifts.back() < 64));
  }
  CHECK(shifts[0] == 0);
  CHECK(SampleOrder(10, 4).shift(50, 64) != shifts[5]);
  const std::set<std::int64_t> different(shifts.begin(), shifts.end());
  CHECK(different.size() > 50);
}

TEST_CASE("Sources of a mixture get their shares, and their own samples are consecutive") {
  for (const std::vector<double>& weights :
       std::vector<std::vector<double>>{{1}, {0.7, 0.3}, {1, 1, 1}, {5, 1e-9}, {2, 0.5, 40, 7}}) {
    const SourceOrder order(weights);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<std::int64_t> counts(weights.size());
    for (std::int64_t consumed = 0; consumed < 2 * SourceOrder::kBlock + 500; ++consumed) {
      const SourceOrder::Position position = order(consumed);
      REQUIRE(position.consumed == counts[position.source]++);
      if (consumed % 97 != 0) continue;
      // Always within a few samples of the exact share.
      for (std::size_t s = 0; s < weights.size(); ++s) {
        REQUIRE(std::abs(static_cast<double>(counts[s]) -
                         static_cast<double>(consumed + 1) * weights[s] / total) < 8);
      }
    }
  }
}

std::vector<std::int64_t> shares_of(const std::vector<double>& weights) {
  const SourceOrder order(weights);
  std::vector<std::int64_t> shares;
  for (std::size_t i = 0; i < weights.size(); ++i) shares.push_back(order.share(i));
  return shares;
}

TEST_CASE("Shares are rounded weights, for any number of files") {
  for (const int count : {3, 416, 40'000}) {
    std::vector<double> weights(static_cast<std::size_t>(count), 1);
    const auto equal = shares_of(weights);
    CHECK(std::accumulate(equal.begin(), equal.end(), std::int64_t{0}) == SourceOrder::kBlock);
    const auto [least, most] = std::ranges::minmax(equal);
    CHECK(most - least <= 1);
  }
  std::vector<double> tail(1000, 1e-9);
  tail.push_back(3);
  tail.push_back(1);
  const auto shares = shares_of(tail);
  CHECK(shares[0] == 1);
  CHECK(shares[1000] + shares[1001] == SourceOrder::kBlock - 1000);
  CHECK(std::abs(shares[1000] - 3 * SourceOrder::kBlock / 4) <= 500);
}

TEST_CASE("Shares of mixtures in existing runs do not change") {
  CHECK(shares_of({0.7, 0.3}) == std::vector<std::int64_t>{45875, 19661});
  CHECK(shares_of({1, 1, 1}) == std::vector<std::int64_t>{21846, 21845, 21845});
  CHECK(shares_of({5, 1e-9}) == std::vector<std::int64_t>{65535, 1});
  CHECK(shares_of({2, 0.5, 40, 7}) == std::vector<std::int64_t>{2648, 662, 52958, 9268});
}

TEST_CASE("A distant position in a mixture is computed without earlier ones") {
  const SourceOrder order(std::vector<double>{0.7, 0.3});
  const std::int64_t far = std::int64_t{1} << 50;
  const SourceOrder::Position position = order(far + 123);
  CHECK(position.consumed ==
        (far / SourceOrder::kBlock) * order.share(position.source) + order(123).consumed);
}

// Numbers that ranks first .. first + count - 1 compute in their microbatches, all or one.
std::vector<std::int64_t> numbers(MicrobatchAssignment deal, std::int64_t first, std::int64_t count,
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

// Checks for consecutive numbers that begin at a multiple of their count: a subtree of a binary
// tree.
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
        const MicrobatchAssignment deal{.grad_accum = grad_accum, .interleave = interleave};
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
}  // namespace dtrain::data::sampler_test
