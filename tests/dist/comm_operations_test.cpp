// Every operation of a group against a naive oracle, over threads, gloo and shm.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>
#include <vector>

#include "dtrain/base/error.h"
#include "support/messages.h"
#include "support/oracles/rounding.h"
#include "support/ranks/local_ranks.h"
#include "support/values.h"

namespace dtrain::testing::comm_operations_test {
namespace {

using base::ErrorKind;
using Catch::Contains;
using comm::ProcessGroup;
using comm::ReduceOp;
using comm::Work;
using comm::World;
using Counts = std::vector<std::int64_t>;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16,
                                     at::kHalf,  at::kLong,   at::kByte};
// Empty, less than a slice, around one, more than the small exchange, several chunks.
constexpr std::int64_t kCounts[] = {0, 1, 63, 65, 1000, 50'021};
constexpr std::int64_t kManyChunks = 2'500'037;  // 10 MB of float32

// Computes slow values once per process. Returns a copy, which the caller may change.
template <typename Make>
at::Tensor remembered(std::int64_t ranks, std::int64_t count, at::ScalarType dtype, Make make) {
  if (count < 1'000'000) return make();
  static std::mutex mutex;
  static std::map<std::tuple<std::int64_t, std::int64_t, at::ScalarType>, at::Tensor> known;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace({ranks, count, dtype});
  if (is_new) found->second = make();
  return found->second.clone();
}

at::Tensor contents_of(std::int64_t rank, std::int64_t count, at::ScalarType dtype) {
  return remembered(-1 - rank, count, dtype, [=] { return values_of(rank, count, dtype); });
}

at::Tensor sum_of_all(std::int64_t ranks, std::int64_t count, at::ScalarType dtype) {
  return remembered(ranks, count, dtype, [=] { return tree_sum(0, ranks, count, dtype); });
}

std::string at_size(const char* what, std::int64_t count, at::ScalarType dtype) {
  return fmt::format("{} of {} {}", what, count, c10::toString(dtype));
}

void check_all_reduce(ProcessGroup& group, std::int64_t count, at::ScalarType dtype) {
  const auto tensor = contents_of(group.rank(), count, dtype);
  group.all_reduce(tensor).wait();
  expect(same_bits(tensor, sum_of_all(group.size(), count, dtype)),
         at_size("the sum in tree order", count, dtype));

  const auto maximum = contents_of(group.rank(), count, dtype);
  group.all_reduce(maximum, ReduceOp::max).wait();
  auto largest = contents_of(0, count, dtype);
  for (std::int64_t rank = 1; rank < group.size(); ++rank) {
    largest = at::maximum(largest, contents_of(rank, count, dtype));
  }
  expect(same_bits(maximum, largest), at_size("the maximum", count, dtype));
}

void check_reduce_scatter(ProcessGroup& group, std::int64_t count, at::ScalarType dtype) {
  const auto input = contents_of(group.rank(), count * group.size(), dtype);
  const auto before = input.clone();
  const auto output = at::empty({count}, input.options());
  group.reduce_scatter(input, output).wait();
  const auto sum = sum_of_all(group.size(), count * group.size(), dtype);
  expect(same_bits(output, sum.narrow(0, group.rank() * count, count)),
         at_size("this rank's part of the sum", count, dtype));
  expect(same_bits(input, before), "the input of reduce_scatter untouched");

  const auto own = input.narrow(0, group.rank() * count, count);
  group.reduce_scatter(input, own).wait();
  expect(same_bits(own, sum.narrow(0, group.rank() * count, count)),
         at_size("this rank's part in place", count, dtype));
}

void check_all_gather(ProcessGroup& group, std::int64_t count, at::ScalarType dtype) {
  std::vector<at::Tensor> parts;
  for (std::int64_t rank = 0; rank < group.size(); ++rank) {
    parts.push_back(contents_of(rank, count, dtype));
  }
  const auto output = at::empty({count * group.size()}, parts[0].options());
  group.all_gather(contents_of(group.rank(), count, dtype), output).wait();
  expect(same_bits(output, at::cat(parts)), at_size("all parts", count, dtype));

  const auto in_place = at::empty({count * group.size()}, parts[0].options());
  const auto own = in_place.narrow(0, group.rank() * count, count);
  own.copy_(contents_of(group.rank(), count, dtype));
  group.all_gather(own, in_place).wait();
  expect(same_bits(in_place, at::cat(parts)), at_size("all parts in place", count, dtype));
}

void check_broadcast(ProcessGroup& group, std::int64_t count, at::ScalarType dtype) {
  const std::int64_t root = group.size() - 1;
  const auto tensor = contents_of(group.rank(), count, dtype);
  group.broadcast(tensor, root).wait();
  expect(same_bits(tensor, contents_of(root, count, dtype)), at_size("the root's", count, dtype));
}

/// Every rank sends to the next before it receives from the previous: blocking sends would
/// deadlock.
void check_ring(ProcessGroup& group, std::int64_t count, at::ScalarType dtype) {
  const std::int64_t next = (group.rank() + 1) % group.size();
  const std::int64_t previous = (group.rank() + group.size() - 1) % group.size();
  const auto sent = contents_of(group.rank(), count, dtype);
  const auto received = at::empty_like(sent);
  Work send = group.send(sent, next);
  group.recv(received, previous).wait();
  send.wait();
  expect(same_bits(received, contents_of(previous, count, dtype)),
         at_size("the previous rank's", count, dtype));
}

/// Elements that rank `from` sends to rank `to`: unequal, and none for some pairs.
std::int64_t part_count(std::int64_t from, std::int64_t to, std::int64_t count) {
  return (2 * from + to) % 3 == 1 ? 0 : count + 13 * from + 5 * to;
}

/// The part that rank `from` sends to rank `to`.
at::Tensor part_of(std::int64_t from, std::int64_t to, std::int64_t count, at::ScalarType dtype) {
  return values_of(7 * from + to, part_count(from, to, count), dtype);
}

void check_all_gather_v(ProcessGroup& group, std::int64_t count, at::ScalarType dtype) {
  Counts counts;
  std::vector<at::Tensor> parts;
  for (std::int64_t rank = 0; rank < group.size(); ++rank) {
    parts.push_back(part_of(rank, 0, count, dtype));
    counts.push_back(parts.back().numel());
  }
  const at::Tensor own = parts[static_cast<std::size_t>(group.rank())];
  const at::Tensor expected = at::cat(parts);
  const at::Tensor output = at::zeros_like(expected);
  group.all_gather_v(own, output, counts).wait();
  expect(same_bits(output, expected), at_size("all unequal parts", count, dtype));
  const std::int64_t before =
      std::accumulate(counts.begin(), counts.begin() + group.rank(), std::int64_t{0});
  const at::Tensor in_place = at::zeros_like(expected);
  const at::Tensor slice = in_place.narrow(0, before, own.numel()).copy_(own);
  group.all_gather_v(slice, in_place, counts).wait();
  expect(same_bits(in_place, expected), at_size("all unequal parts in place", count, dtype));
}

void check_all_to_all(ProcessGroup& group, std::int64_t count, at::ScalarType dtype) {
  Counts sent;
  Counts received;
  std::vector<at::Tensor> to_all;
  std::vector<at::Tensor> from_all;
  for (std::int64_t peer = 0; peer < group.size(); ++peer) {
    to_all.push_back(part_of(group.rank(), peer, count, dtype));
    from_all.push_back(part_of(peer, group.rank(), count, dtype));
    sent.push_back(to_all.back().numel());
    received.push_back(from_all.back().numel());
  }
  const at::Tensor input = at::cat(to_all);
  const at::Tensor expected = at::cat(from_all);
  const at::Tensor output = at::zeros_like(expected);
  group.all_to_all(input, sent, output, received).wait();
  expect(same_bits(output, expected), at_size("a part from each rank", count, dtype));
  expect(same_bits(input, at::cat(to_all)), "the input of all_to_all untouched");
}

/// Parts of several chunks, and empty ones.
void check_extremes(ProcessGroup& group) {
  constexpr std::int64_t kLargePart = 300'017;  // more than a staging area of float32 holds
  check_all_reduce(group, kManyChunks, at::kFloat);
  check_reduce_scatter(group, kManyChunks / group.size(), at::kFloat);
  check_ring(group, kManyChunks, at::kFloat);
  check_all_gather_v(group, kLargePart, at::kFloat);
  check_all_to_all(group, kLargePart, at::kFloat);
  const Counts none(static_cast<std::size_t>(group.size()), 0);
  const at::Tensor nothing = at::empty({0});
  group.all_gather_v(nothing, nothing.clone(), none).wait();
  group.all_to_all(nothing, none, nothing.clone(), none).wait();
}

std::string check_every_operation(World& world, const std::string&) {
  const auto group = group_of_all(world);
  for (const auto dtype : kTypes) {
    for (const auto count : kCounts) {
      check_all_reduce(*group, count, dtype);
      check_reduce_scatter(*group, count, dtype);
      check_all_gather(*group, count, dtype);
      check_broadcast(*group, count, dtype);
      check_ring(*group, count, dtype);
      check_all_gather_v(*group, count, dtype);
      check_all_to_all(*group, count, dtype);
    }
  }
  check_extremes(*group);
  group->barrier();
  const auto sum = contents_of(group->rank(), kManyChunks, at::kFloat);
  group->all_reduce(sum).wait();
  const auto bits = sum.view(at::kInt).to(at::kLong);
  return std::to_string((bits * at::arange(1, bits.numel() + 1)).sum().item<std::int64_t>());
}

const RankProgram every_operation("every operation", check_every_operation);

// Holds for any order of addition, and with rounded partial sums.
void check_near_sum(const at::Tensor& found, std::int64_t ranks, at::ScalarType dtype) {
  at::Tensor exact = at::zeros({found.numel()}, at::kDouble);
  at::Tensor magnitudes = exact.clone();
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const at::Tensor part = contents_of(rank, found.numel(), dtype).to(at::kDouble);
    exact += part;
    magnitudes += part.abs();
  }
  const double bound = rounding_bound(dtype, static_cast<double>(ranks));
  const at::Tensor error = (found.to(at::kDouble) - exact).abs();
  expect((error <= bound * magnitudes).all().item<bool>(), "about the sum");
}

std::string check_fast(World& world, const std::string&) {
  const auto group = group_of_all(world);
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1000}, kManyChunks}) {
    const auto tensor = contents_of(group->rank(), count, at::kFloat);
    group->all_reduce(tensor).wait();
    check_near_sum(tensor, group->size(), at::kFloat);
  }
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const auto tensor = contents_of(group->rank(), 1000, dtype);
    group->all_reduce(tensor).wait();
    check_near_sum(tensor, group->size(), dtype);
  }
  return {};
}

const RankProgram fast_reduction("fast reduction", check_fast);

/// Many calls in flight, waited for in reverse order, with messages in between.
std::string check_many_outstanding(World& world, const std::string&) {
  const auto group = group_of_all(world);
  const std::int64_t next = (group->rank() + 1) % group->size();
  const std::int64_t previous = (group->rank() + group->size() - 1) % group->size();
  std::vector<at::Tensor> sums;
  std::vector<at::Tensor> received;
  std::vector<Work> works;
  for (std::int64_t i = 0; i < 20; ++i) {
    const std::int64_t count = i * i * 400 + 1;
    sums.push_back(contents_of(group->rank(), count, at::kFloat));
    received.push_back(at::empty({count}, at::kFloat));
    works.push_back(group->all_reduce(sums.back()));
    works.push_back(group->send(contents_of(group->rank(), count, at::kFloat), next));
    works.push_back(group->recv(received.back(), previous));
  }
  for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::int64_t count = sums[i].numel();
    expect(same_bits(sums[i], sum_of_all(group->size(), count, at::kFloat)), "each sum");
    expect(same_bits(received[i], contents_of(previous, count, at::kFloat)), "each message");
  }
  return {};
}

const RankProgram many_outstanding("many outstanding", check_many_outstanding);

/// A reduction completes while no rank waits for it, so it can overlap the backward pass.
std::string check_progress_without_wait(World& world, const std::string&) {
  const auto group = group_of_all(world);
  const auto tensor = contents_of(group->rank(), kManyChunks, at::kFloat);
  const Work work = group->all_reduce(tensor);
  const auto start = base::Clock::now();
  while (!work.is_completed() && base::seconds_since(start) < 10) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  expect(work.is_completed(), "the reduction to complete on its own");
  expect(group->calls().counters().wait_seconds == 0, "no time in waits");
  group->barrier();
  return {};
}

const RankProgram progress_without_wait("progress without wait", check_progress_without_wait);

std::string check_counters(World& world, const std::string&) {
  const auto group = group_of_all(world);
  constexpr std::int64_t kCount = 64 * 1024;
  group->all_reduce(contents_of(group->rank(), kCount, at::kFloat)).wait();
  const auto other = 1 - group->rank();
  const auto message = at::zeros({100}, at::kByte);
  if (group->rank() == 0) {
    group->send(message, other).wait();
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    group->recv(message, other).wait();
  }
  const auto counters = group->calls().counters();
  // Each of two ranks sends half of its contribution and its half of the sum.
  const std::int64_t sent = kCount * 4 + (group->rank() == 0 ? 100 : 0);
  expect(counters.calls == 2, "two calls");
  expect(counters.bytes_sent == sent, fmt::format("{} bytes, not {}", sent, counters.bytes_sent));
  expect(group->rank() == 1 || counters.wait_seconds > 0.03, "the wait for a late peer counted");
  const auto records = group->calls().records();
  expect(records.size() == 2 && records[0].op == "all_reduce" && records[0].count == kCount &&
             records[0].state == comm::CallState::done && records[0].started <= records[0].ended,
         "a record of each call");
  expect(records[1].peer == other, "the peer of the message");
  return {};
}

std::string count_parts(World& world, const std::string&) {
  const auto group = group_of_all(world);
  const std::int64_t rank = group->rank();
  group->all_gather_v(at::ones({3 + rank}), at::empty({7}), Counts{3, 4}).wait();
  // Rank 0 keeps 2 elements and sends 5; rank 1 sends none and keeps 1.
  const Counts sent = rank == 0 ? Counts{2, 5} : Counts{0, 1};
  const Counts received = rank == 0 ? Counts{2, 0} : Counts{5, 1};
  group
      ->all_to_all(at::ones({sent[0] + sent[1]}), sent, at::empty({received[0] + received[1]}),
                   received)
      .wait();
  const auto records = group->calls().records();
  expect(records.size() == 2 && records[0].op == "all_gather_v" && records[1].op == "all_to_all",
         "a record of each call");
  expect(records[0].count == 3 + rank && records[0].bytes_sent == 4 * (3 + rank),
         "this rank's part, sent once");
  expect(records[1].count == sent[0] + sent[1] && records[1].bytes_sent == (rank == 0 ? 20 : 0),
         "what the other rank gets");
  return {};
}

const RankProgram counters("counters", check_counters);
const RankProgram counted_parts("counted parts", count_parts);

std::vector<std::string> texts_on_processes(const std::string& program,
                                            const ProcessOptions& options) {
  std::vector<std::string> texts;
  for (const auto& outcome : on_processes(program, options)) {
    INFO(outcome.text << outcome.standard_error);
    CHECK(outcome.status == 0);
    CHECK(outcome.errors().empty());
    texts.push_back(outcome.text);
  }
  return texts;
}

std::string process_backend() { return GENERATE("gloo", "shm"); }

std::vector<std::string> texts_on_threads(std::int64_t size, const RankBody& body) {
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  on_threads(
      size, [&](World& world) { texts[static_cast<std::size_t>(world.rank())] = body(world, ""); });
  return texts;
}

TEST_CASE("Every operation equals a naive implementation, on ranks that are threads") {
  on_threads(1, [](World& world) {
    const auto group = group_of_all(world);
    for (const auto count : kCounts) {
      check_all_reduce(*group, count, at::kFloat);
      check_reduce_scatter(*group, count, at::kFloat);
      check_all_gather(*group, count, at::kFloat);
      check_broadcast(*group, count, at::kFloat);
      check_all_gather_v(*group, count, at::kFloat);
      check_all_to_all(*group, count, at::kFloat);
    }
    group->barrier();
  });
  texts_on_threads(8, check_every_operation);  // 2, 3 and 4 beside processes, below
}

TEST_CASE("Every operation equals a naive implementation, with the same bits in processes") {
  const std::int64_t size = GENERATE(2, 3, 4);
  CAPTURE(size);
  const auto over_gloo = texts_on_processes("every operation", {.size = size});
  const auto over_shm = texts_on_processes("every operation", {.size = size, .backend = "shm"});
  const auto over_threads = texts_on_threads(size, check_every_operation);
  REQUIRE(over_gloo == over_threads);
  REQUIRE(over_shm == over_threads);
  REQUIRE(!over_gloo[0].empty());
}

TEST_CASE("The fast reduction over gloo is correct up to rounding") {
  texts_on_processes("fast reduction", {.size = 3,
                                        .group = {.timeout = std::chrono::seconds(20),
                                                  .reduction = comm::Reduction::fast}});
}

TEST_CASE("Many calls may be in flight at once") {
  texts_on_threads(4, check_many_outstanding);
  texts_on_processes("many outstanding", {.size = 3, .backend = process_backend()});
}

TEST_CASE("A reduction completes although no rank waits for it") {
  texts_on_threads(2, check_progress_without_wait);
  texts_on_processes("progress without wait", {.size = 2, .backend = process_backend()});
}

TEST_CASE("Calls, bytes and time in waits are counted") {
  texts_on_threads(2, check_counters);
  texts_on_threads(2, count_parts);
  const std::string backend = process_backend();
  texts_on_processes("counters", {.size = 2, .backend = backend});
  texts_on_processes("counted parts", {.size = 2, .backend = backend});
}

/// The message of the error that `action` must throw.
template <typename Action>
std::string message_of(ErrorKind kind, Action&& action) {
  try {
    action();
  } catch (const base::Error& error) {
    expect(error.kind() == kind, fmt::format("another kind of error than: {}", error.what()));
    return error.what();
  }
  throw std::runtime_error("expected an error");
}

TEST_CASE("Counts that do not fit this rank's tensors are rejected before the call") {
  on_threads(2, [](World& world) {
    const auto group = group_of_all(world);
    const auto three = at::ones({3});
    const auto seven = at::ones({7});
    const std::vector<std::function<void()>> calls{
        [&] {
          (void)group->all_gather_v(three, seven, Counts{3, 5});
        },
        [&] {
          (void)group->all_gather_v(three, seven, Counts{2, 5});
        },
        [&] {
          (void)group->all_gather_v(three, seven, Counts{3, 4, 0});
        },
        [&] {
          (void)group->all_gather_v(three, seven, Counts{8, -1});
        },
        [&] {
          (void)group->all_to_all(three, Counts{1, 1}, seven, Counts{1, 6});
        },
        [&] {
          (void)group->all_to_all(three, Counts{1, 2}, seven, Counts{5, 3});
        },
        [&] {
          (void)group->all_to_all(three, Counts{1, 2}, seven, Counts{2, 5});
        },
        [&] {
          (void)group->all_to_all(three, Counts{1, 2}, at::ones({3}, at::kLong), Counts{1, 2});
        },
    };
    for (const auto& call : calls) (void)message_of(ErrorKind::internal, call);
    expect(group->calls().counters().calls == 0, "no call made");
  });
}

TEST_CASE("Ranks whose counts disagree fail with both counts") {
  std::vector<std::string> gathered(2);
  std::vector<std::string> exchanged(2);
  on_threads(2, [&](World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto gather = group_of_all(world);
    const auto exchange = group_of_all(world);
    try {
      const Counts counts = rank == 0 ? Counts{3, 4} : Counts{4, 3};
      gather->all_gather_v(at::ones({3}), at::empty({7}), counts).wait();
    } catch (const base::Error& error) {
      gathered[rank] = error.what();
    }
    try {
      const Counts sent = rank == 0 ? Counts{1, 5} : Counts{1, 1};
      const Counts received = rank == 0 ? Counts{1, 1} : Counts{4, 1};
      const auto input = at::ones({sent[0] + sent[1]});
      exchange->all_to_all(input, sent, at::empty({received[0] + received[1]}), received).wait();
      exchange->barrier();
    } catch (const base::Error& error) {
      exchanged[rank] = error.what();
    }
  });
  for (const auto& message : gathered) CHECK_THAT(message, Contains("different calls"));
  for (const auto& message : exchanged) {
    CHECK_THAT(message, Names("rank 0", "20 bytes", "rank 1", 16));
  }
}

}  // namespace
}  // namespace dtrain::testing::comm_operations_test
