// all_gather_v and all_to_all, whose parts differ in size, against plain loops over all backends.
#include <fmt/format.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <thread>

#include "dtrain/base/error.h"
#include "support/local_ranks.h"
#include "support/messages.h"
#include "support/values.h"

namespace dtrain::testing::comm_parts_test {
namespace {

using base::ErrorKind;
using Catch::Contains;
using comm::ProcessGroup;
using comm::World;
using Counts = std::vector<std::int64_t>;

constexpr std::int64_t kLarge = 300'017;  // more than a staging area of float32 holds

/// How many elements rank `from` has for rank `to`: unequal, and for some pairs none.
std::int64_t count_of(std::int64_t from, std::int64_t to, std::int64_t base) {
  return (2 * from + to) % 3 == 1 ? 0 : base + 13 * from + 5 * to;
}

/// The part that rank `from` has for rank `to`.
at::Tensor part_of(std::int64_t from, std::int64_t to, std::int64_t base, at::ScalarType dtype) {
  return values_of(7 * from + to, count_of(from, to, base), dtype);
}

at::Tensor joined(const std::vector<at::Tensor>& parts) { return at::cat(parts); }

/// Memory that the other ranks can reach, or not.
at::Tensor new_tensor(World& world, std::int64_t count, at::ScalarType dtype, bool is_shared) {
  if (!is_shared) return at::zeros({count}, world.options(dtype));
  return world.allocate(count * static_cast<std::int64_t>(c10::elementSize(dtype))).view(dtype);
}

void check_all_gather_v(World& world, ProcessGroup& group, std::int64_t base, at::ScalarType dtype,
                        bool is_shared) {
  Counts counts;
  std::vector<at::Tensor> parts;
  std::int64_t before = 0;  // elements of the ranks below this one
  for (std::int64_t rank = 0; rank < group.size(); ++rank) {
    parts.push_back(part_of(rank, 0, base, dtype));
    counts.push_back(parts.back().numel());
    if (rank < group.rank()) before += counts.back();
  }
  const at::Tensor expected = joined(parts);
  const at::Tensor own = parts[static_cast<std::size_t>(group.rank())];
  const auto input = new_tensor(world, own.numel(), dtype, is_shared).copy_(own);
  const auto output = new_tensor(world, expected.numel(), dtype, is_shared);
  group.all_gather_v(input, output, counts).wait();
  expect(same_bits(output, expected), fmt::format("all parts of about {}", base));

  const auto in_place = new_tensor(world, expected.numel(), dtype, is_shared);
  const auto slice = in_place.narrow(0, before, own.numel()).copy_(own);
  group.all_gather_v(slice, in_place, counts).wait();
  expect(same_bits(in_place, expected), fmt::format("all parts of about {} in place", base));
}

void check_all_to_all(World& world, ProcessGroup& group, std::int64_t base, at::ScalarType dtype,
                      bool is_shared) {
  Counts sent;
  Counts received;
  std::vector<at::Tensor> to_all;
  std::vector<at::Tensor> from_all;
  for (std::int64_t peer = 0; peer < group.size(); ++peer) {
    to_all.push_back(part_of(group.rank(), peer, base, dtype));
    from_all.push_back(part_of(peer, group.rank(), base, dtype));
    sent.push_back(to_all.back().numel());
    received.push_back(from_all.back().numel());
  }
  const at::Tensor parts = joined(to_all);
  const at::Tensor expected = joined(from_all);
  const auto input = new_tensor(world, parts.numel(), dtype, is_shared).copy_(parts);
  const auto output = new_tensor(world, expected.numel(), dtype, is_shared);
  group.all_to_all(input, sent, output, received).wait();
  expect(same_bits(output, expected), fmt::format("a part of about {} from each rank", base));
  expect(same_bits(input, parts), "the input of all_to_all untouched");
}

std::string check_parts(World& world, const std::string&) {
  const auto group = group_of_all(world);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte}) {
    for (const std::int64_t base : {0, 1, 63, 1000, 50'021}) {
      const bool is_shared = (base + world.rank()) % 2 == 0;  // ranks differ
      check_all_gather_v(world, *group, base, dtype, is_shared);
      check_all_to_all(world, *group, base, dtype, is_shared);
    }
  }
  for (const bool is_shared : {false, true, world.rank() == 0}) {
    check_all_gather_v(world, *group, kLarge, at::kFloat, is_shared);
    check_all_to_all(world, *group, kLarge, at::kFloat, is_shared);
  }
  const Counts none(static_cast<std::size_t>(group->size()), 0);
  const auto nothing = at::empty({0});
  group->all_gather_v(nothing, nothing.clone(), none).wait();
  group->all_to_all(nothing, none, nothing.clone(), none).wait();
  group->barrier();
  return "right";
}

const RankProgram unequal_parts("unequal parts", check_parts);

void check_right(const std::vector<RankOutcome>& outcomes) {
  for (const RankOutcome& outcome : outcomes) {
    INFO(outcome.text << outcome.standard_error);
    CHECK(outcome.status == 0);
    CHECK(outcome.text == "right");
    CHECK(outcome.errors().empty());
  }
}

TEST_CASE("Parts of different sizes are gathered and exchanged, on ranks that are threads") {
  const std::int64_t size = GENERATE(1, 2, 5, 8);
  on_threads(size, [](World& world) { check_parts(world, ""); });
}

TEST_CASE("Parts of different sizes are gathered and exchanged, in processes") {
  const std::int64_t size = GENERATE(2, 3, 4);
  const std::string backend = GENERATE("gloo", "shm");
  check_right(on_processes("unequal parts", {.size = size, .backend = backend}));
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
  return "right";
}

const RankProgram counted_parts("counted parts", count_parts);

TEST_CASE("Calls and bytes of unequal parts are counted") {
  on_threads(2, [](World& world) { count_parts(world, ""); });
  const std::string backend = GENERATE("gloo", "shm");
  check_right(on_processes("counted parts", {.size = 2, .backend = backend}));
}

/// The message of the error that `action` must end with.
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

TEST_CASE("Counts that do not fit this rank's tensors are refused before the call") {
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

TEST_CASE("Ranks whose counts disagree are told so") {
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

// --- failures ------------------------------------------------------------------------------------

/// Gathers or exchanges parts of `count` elements and less, again and again, until it fails.
std::string exchange_until_failure(World& world, const std::string& task) {
  const auto group = group_of_all(world);
  const bool gathers = task.front() == 'g';
  const std::int64_t count = std::stoll(task.substr(1));
  const Counts counts{count, count / 2, 0};
  const auto own = counts[static_cast<std::size_t>(group->rank())];
  const Counts equal(3, count);
  const auto call = [&] {
    if (gathers) {
      group->all_gather_v(at::ones({own}), at::empty({count + count / 2}), counts).wait();
    } else {
      group->all_to_all(at::ones({3 * count}), equal, at::empty({3 * count}), equal).wait();
    }
  };
  call();
  print_progress("started");
  return message_of(ErrorKind::comm, [&] {
    while (true) call();
  });
}

const RankProgram until_failure("exchange until failure", exchange_until_failure);

TEST_CASE("A process killed in the middle of an exchange of parts is named by the others") {
  const std::string task = GENERATE("g2000000", "x700000");
  const std::string backend = GENERATE("gloo", "shm");
  CAPTURE(task, backend);
  RankProcesses processes("exchange until failure",
                          {.size = 3, .argument = task, .backend = backend});
  for (const auto rank : {0, 1, 2}) processes.next_line(rank);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const auto killed = base::Clock::now();
  processes.signal(1, SIGKILL);
  const auto outcomes = processes.wait();
  CHECK(base::seconds_since(killed) < 3);
  for (const auto rank : {0U, 2U}) {
    INFO(outcomes[rank].text << outcomes[rank].standard_error);
    CHECK(outcomes[rank].status == 0);
    CHECK_THAT(outcomes[rank].text, Names("rank 1", "closed"));
  }
}

std::string wait_for_parts(World& world, const std::string&) {
  const auto group = group_of_all(world);
  group->barrier();
  print_progress("met");
  if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
  const std::string message = message_of(ErrorKind::timeout, [&] {
    const Counts two(2, 2);
    group->all_to_all(at::ones({4}), two, at::empty({4}), two).wait();
  });
  print_progress("failed");
  return message;
}

const RankProgram late_parts("wait for parts", wait_for_parts);

TEST_CASE("An exchange of parts ends at its deadline and names the rank that did not come") {
  const std::string backend = GENERATE("gloo", "shm");
  RankProcesses processes(
      "wait for parts",
      {.size = 2, .backend = backend, .group = {.timeout = std::chrono::seconds(6)}});
  for (const auto rank : {0, 1}) processes.next_line(rank);
  (void)processes.next_line(0);
  processes.signal(1, SIGKILL);
  const auto outcome = processes.wait()[0];
  INFO(outcome.text);
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.text,
             Names("rank 1", "6.0 s", "--comm-timeout", "all_to_all", 4, "float32", "16 bytes"));
}

}  // namespace
}  // namespace dtrain::testing::comm_parts_test
