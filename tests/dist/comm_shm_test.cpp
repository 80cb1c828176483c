// Ranks that share memory: races between calls, tensors within and outside shared segments, memory
// accounting, and cleanup.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/comm/internal/host/host_topology.h"
#include "dtrain/comm/internal/host/segment.h"
#include "support/messages.h"
#include "support/ranks/local_ranks.h"
#include "support/temp_folder.h"
#include "support/values.h"

namespace dtrain::testing::comm_shm_test {
namespace {

using base::ErrorKind;
using Catch::Contains;
using comm::ProcessGroup;
using comm::Work;
using comm::World;

// --- many back-to-back calls of all kinds --------------------------------------------------------

/// A series of random calls. All ranks draw the same calls, and each its own delays and its own
/// mixture of tensors within and outside the memory of World::allocate.
class RandomCalls {
 public:
  RandomCalls(World& world, ProcessGroup& group)
      : world_(world), group_(group), own_(static_cast<unsigned>(7919 * (group.rank() + 1))) {}

  void step() {
    ++step_;
    static constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kLong, at::kByte};
    dtype_ = kTypes[draw(4)];
    count_ = draw_count();
    const bool message = draw(3) == 0;
    at::Tensor sent;
    at::Tensor received;
    std::vector<Work> messages;
    if (message) {
      sent = filled(group_.rank(), count_);
      received = tensor(count_);
      messages.push_back(group_.send(sent, (group_.rank() + 1) % group_.size()));
      messages.push_back(group_.recv(received, previous()));
    }
    maybe_dawdle();
    collective(draw(8));
    maybe_dawdle();
    for (Work& work : messages) work.wait();
    if (message) check(received, values(previous(), count_), "message");
  }

 private:
  std::int64_t draw(std::int64_t below) {
    return std::uniform_int_distribution<std::int64_t>(0, below - 1)(common_);
  }
  std::int64_t draw_count() {
    switch (draw(40)) {
      case 0:
        return 0;
      case 1:
        return 200'000 + draw(100'000);  // more than a staging area of doubles holds
      case 2:
      case 3:
        return 1 + draw(20'000);
      default:
        return 1 + draw(1500);
    }
  }
  void maybe_dawdle() {
    if (own_() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own_() % 300));
  }

  std::int64_t previous() const { return (group_.rank() + group_.size() - 1) % group_.size(); }
  std::int64_t label(std::int64_t rank) const { return group_.size() * (step_ % 500) + rank; }
  at::Tensor values(std::int64_t rank, std::int64_t count) const {
    return values_of(label(rank), count, dtype_);
  }
  at::Tensor sum(std::int64_t count) const {
    return tree_sum(label(0), group_.size(), count, dtype_);
  }
  at::Tensor tensor(std::int64_t count) {
    if (own_() % 2 == 0) return at::zeros({count}, dtype_);
    const auto bytes = count * static_cast<std::int64_t>(c10::elementSize(dtype_));
    return world_.allocate(bytes).view(dtype_);
  }
  at::Tensor filled(std::int64_t rank, std::int64_t count) {
    return tensor(count).copy_(values(rank, count));
  }
  void check(const at::Tensor& found, const at::Tensor& expected, const char* what) const {
    expect(same_bits(found, expected),
           fmt::format("a right {} of {} {} in step {} on rank {}", what, count_,
                       c10::toString(dtype_), step_, group_.rank()));
  }

  void collective(std::int64_t kind) {
    const std::int64_t size = group_.size();
    const std::int64_t rank = group_.rank();
    if (kind <= 1) {
      const auto reduced = filled(rank, count_);
      group_.all_reduce(reduced).wait();
      check(reduced, sum(count_), "sum");
    } else if (kind == 2) {
      const auto input = filled(rank, count_ * size);
      const auto slice = input.narrow(0, rank * count_, count_);
      const auto output = draw(2) == 0 ? slice : tensor(count_);
      group_.reduce_scatter(input, output).wait();
      check(output, sum(count_ * size).narrow(0, rank * count_, count_), "slice of the sum");
    } else if (kind == 3) {
      const auto output = tensor(count_ * size);
      const auto slice = output.narrow(0, rank * count_, count_);
      const auto input = draw(2) == 0 ? slice : tensor(count_);
      group_.all_gather(input.copy_(values(rank, count_)), output).wait();
      std::vector<at::Tensor> parts;
      for (std::int64_t each = 0; each < size; ++each) parts.push_back(values(each, count_));
      check(output, at::cat(parts), "gathering");
    } else if (kind == 4) {
      const std::int64_t root = draw(size);
      const auto spread = filled(rank, count_);
      group_.broadcast(spread, root).wait();
      check(spread, values(root, count_), "broadcast");
    } else if (kind == 5) {
      gather_unequal();
    } else if (kind == 6) {
      exchange_unequal();
    } else {
      group_.barrier();
    }
  }

  void gather_unequal() {
    std::vector<std::int64_t> counts;
    std::vector<at::Tensor> parts;
    for (std::int64_t rank = 0; rank < group_.size(); ++rank) {
      counts.push_back(draw(3) == 0 ? 0 : draw_count());
      parts.push_back(values(rank, counts.back()));
    }
    const at::Tensor expected = at::cat(parts);
    const auto output = tensor(expected.numel());
    const auto own = static_cast<std::size_t>(group_.rank());
    group_.all_gather_v(filled(group_.rank(), counts[own]), output, counts).wait();
    check(output, expected, "unequal gathering");
  }

  void exchange_unequal() {
    const auto size = static_cast<std::size_t>(group_.size());
    const auto own = static_cast<std::size_t>(group_.rank());
    std::vector<std::int64_t> sent(size);
    std::vector<std::int64_t> received(size);
    std::vector<at::Tensor> to_all;
    std::vector<at::Tensor> from_all;
    for (std::size_t from = 0; from < size; ++from) {
      for (std::size_t to = 0; to < size; ++to) {
        const std::int64_t count = draw(3) == 0 ? 0 : draw_count();
        const auto part = values(static_cast<std::int64_t>(from + to), count);
        if (from == own) sent[to] = count;
        if (from == own) to_all.push_back(part);
        if (to == own) received[from] = count;
        if (to == own) from_all.push_back(part);
      }
    }
    const at::Tensor expected = at::cat(from_all);
    const at::Tensor parts = at::cat(to_all);
    const auto input = tensor(parts.numel()).copy_(parts);
    const auto output = tensor(expected.numel());
    group_.all_to_all(input, sent, output, received).wait();
    check(output, expected, "exchange of unequal parts");
  }

  World& world_;
  ProcessGroup& group_;
  std::mt19937 common_{4711};
  std::mt19937 own_;
  std::int64_t step_ = 0;
  at::ScalarType dtype_ = at::kFloat;
  std::int64_t count_ = 0;
};

std::string check_random_calls(World& world, const std::string& steps) {
  const auto group = group_of_all(world);
  RandomCalls calls(world, *group);
  for (std::int64_t step = 0; step < std::stoll(steps); ++step) calls.step();
  return "right";
}

const RankProgram random_calls("random calls", check_random_calls);

void check_right(const std::vector<RankOutcome>& outcomes) {
  for (const RankOutcome& outcome : outcomes) {
    INFO(outcome.text << outcome.standard_error);
    CHECK(outcome.status == 0);
    CHECK(outcome.text == "right");
  }
}

TEST_CASE("Thousands of back-to-back random calls are correct in processes") {
  const auto [size, steps] =
      GENERATE(table<std::int64_t, std::string>({{2, "4000"}, {4, "1200"}, {8, "400"}}));
  check_right(on_processes("random calls", {.size = size, .argument = steps, .backend = "shm"}));
}

TEST_CASE("Thousands of back-to-back random calls are correct in threads") {
  on_threads(4, [](World& world) { check_random_calls(world, "1200"); });
}

// --- groups --------------------------------------------------------------------------------------

/// Bytes of memory that back the segment of this process.
std::int64_t segment_bytes() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (target.string().rfind("/memfd:dtrain", 0) != 0) continue;
    struct stat status {};
    ::fstat(std::stoi(entry.path().filename()), &status);
    return status.st_blocks * 512;
  }
  return 0;
}

std::string make_many_groups(World& world, const std::string&) {
  const auto everyone = group_of_all(world);
  std::int64_t after_ten = 0;  // rounds
  for (std::int64_t round = 0; round < 60; ++round) {
    // Overlapping groups in both orders, each used while the others live.
    const auto low = world.split(comm::ranks_below(2), "low");
    std::vector<std::int64_t> backwards = comm::ranks_below(world.size());
    std::reverse(backwards.begin(), backwards.end());
    const auto back = world.split(backwards, "back");
    const auto tensor = at::full({round * 100 + 1}, static_cast<double>(world.rank() + 1));
    Work in_low = low ? low->all_reduce(tensor) : Work();
    in_low.wait();
    const double expected = low ? 3 : static_cast<double>(world.rank() + 1);
    expect(at::all(tensor == expected).item<bool>(), "the sum over the lower ranks");
    const auto order = at::full({1}, world.rank(), at::kLong);
    const auto all = at::empty({world.size()}, at::kLong);
    back->all_gather(order, all).wait();
    expect(all[0].item<std::int64_t>() == world.size() - 1, "the group's own order");
    everyone->barrier();
    if (round == 9) after_ten = segment_bytes();
  }
  // It is 1 MiB, or a little more where a rank lags behind; groups that are kept take 40 MiB.
  expect(segment_bytes() <= after_ten + (8 << 20), "the memory of groups that are gone reused");
  return "right";
}

const RankProgram many_groups("many groups", make_many_groups);

TEST_CASE("Destroyed groups release their memory") {
  check_right(on_processes("many groups", {.size = 3, .backend = "shm"}));
  on_threads(3, [](World& world) { make_many_groups(world, ""); });
}

std::string drop_early(World& world, const std::string&) {
  auto group = group_of_all(world);
  const auto tensor = at::ones({100'000});
  group->barrier();
  if (world.rank() == 0) {
    group.reset();  // its memory holds the group's control block
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return "right";
  }
  const std::int64_t peer = 3 - world.rank();
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (world.rank() == 1) group->send(tensor, peer).wait();
    if (world.rank() == 2) group->recv(tensor, peer).wait();
  }
  return "right";
}

const RankProgram early_drop("drop early", drop_early);

TEST_CASE("Two ranks can still exchange messages when a third has left the group") {
  check_right(on_processes("drop early", {.size = 3, .backend = "shm"}));
  on_threads(3, [](World& world) { drop_early(world, ""); });
}

TEST_CASE("Ranks that make different calls fail") {
  std::vector<std::string> messages(2);
  on_threads(2, [&](World& world) {
    const auto group = group_of_all(world);
    try {
      group->all_reduce(at::ones({10 + world.rank() * 100'000})).wait();
    } catch (const base::Error& error) {
      messages[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  for (const auto& message : messages) CHECK_THAT(message, Contains("different calls"));
}

// --- memory --------------------------------------------------------------------------------------

std::string use_memory(World& world, const std::string&) {
  constexpr std::int64_t kBytes = 8 << 20;
  const auto group = group_of_all(world);
  const std::int64_t before = segment_bytes();
  at::Tensor tensor = world.allocate(kBytes);
  expect(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64 == 0, "an aligned tensor");
  expect(at::all(tensor == 0).item<bool>(), "zeros");
  tensor.fill_(7);
  expect(segment_bytes() >= before + kBytes, "memory behind a tensor");
  const at::Tensor view = tensor.narrow(0, 100, 50);
  tensor.reset();
  expect(at::all(view == 7).item<bool>(), "a view to keep the memory");
  at::Tensor other = world.allocate(kBytes);
  expect(at::all(other == 0).item<bool>(), "zeros beside a view");
  other.fill_(9);
  other.reset();
  expect(segment_bytes() <= before + 2 * kBytes, "no more than was in use at once");
  for (int i = 0; i < 50; ++i) {
    const at::Tensor again = world.allocate(1000 + i * 70'000);
    expect(at::all(again == 0).item<bool>(), "zeros again");
    again.fill_(255);
  }
  expect(segment_bytes() <= (before + 2 * kBytes) * 5 / 4, "freed memory used again, in any sizes");
  expect(world.allocate(0).numel() == 0, "an empty tensor");
  try {
    (void)world.allocate(std::int64_t{1} << 50);
  } catch (const base::Error& error) {
    expect(error.kind() == ErrorKind::memory, "out of memory");
    return "right";
  }
  return "allocated 2^50 bytes";
}

const RankProgram memory("memory", use_memory);

TEST_CASE("Shared memory is zeroed, kept by views, given back and limited") {
  check_right(on_processes("memory", {.size = 2, .backend = "shm"}));
}

TEST_CASE("A segment counts its memory and outlives its owner while a tensor lives") {
  std::int64_t counted = 0;
  auto segment = std::make_shared<comm::Segment>(
      std::int64_t{1} << 30, [&counted](std::int64_t bytes) { counted += bytes; });
  auto bytes = segment->allocate(10'000);
  CHECK(counted == 12'288);
  segment.reset();
  std::fill_n(bytes.get(), 10'000, std::byte{1});
  bytes.reset();
  CHECK(counted == 0);
}

TEST_CASE("A segment never goes beyond a limit that is no multiple of a page") {
  CHECK(comm::Segment(10'001, {}).bytes() == 8'192);
}

// The start of the shortest free run of at least `size` numbers.
std::optional<std::int64_t> smallest_gap(const std::vector<int>& owner, std::int64_t size) {
  std::optional<std::int64_t> best;
  std::int64_t best_length = 0;
  for (auto begin = owner.begin(); begin != owner.end();) {
    const auto end = std::find_if(begin, owner.end(),
                                  [&](int other) { return (other == -1) != (*begin == -1); });
    const std::int64_t length = end - begin;
    if (*begin == -1 && length >= size && (!best || length < best_length)) {
      best = begin - owner.begin();
      best_length = length;
    }
    begin = end;
  }
  return best;
}

TEST_CASE("Free ranges neither overlap nor get lost") {
  constexpr std::int64_t kSize = 200;
  comm::FreeRanges ranges(kSize);
  std::vector<int> owner(kSize, -1);  // the oracle: owner of each number
  std::map<int, std::pair<std::int64_t, std::int64_t>> taken;
  std::mt19937 random(3);
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 && !taken.empty()) {
      const auto victim = std::next(taken.begin(), random() % taken.size());
      const auto [begin, size] = victim->second;
      ranges.give_back(begin, size);
      std::fill_n(owner.begin() + begin, size, -1);
      taken.erase(victim);
      continue;
    }
    const std::int64_t size = 1 + random() % 40;
    const auto begin = ranges.take(size);
    const std::optional<std::int64_t> gap = smallest_gap(owner, size);
    REQUIRE(begin == gap);
    if (!begin) continue;
    std::fill_n(owner.begin() + *begin, size, step);
    taken[step] = {*begin, size};
  }
}

// --- cleanup -------------------------------------------------------------------------------------

std::set<std::string> shared_things() {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.find("dtrain") != std::string::npos) found.insert(entry.path());
  }
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (line.find("@dtrain-") != std::string::npos) found.insert(line);
  }
  return found;
}

std::string wait_for_the_end(World& world, const std::string&) {
  const auto group = group_of_all(world);
  const auto tensor = world.allocate(4 << 20).fill_(1);
  group->all_reduce(tensor).wait();
  print_progress("started");
  while (true) group->all_reduce(tensor).wait();
}

const RankProgram endless("wait for the end", wait_for_the_end);

TEST_CASE("Killed processes leave nothing behind") {
  const auto before = shared_things();
  const TempFolder temporary;  // other tests put folders into that of the machine
  const char* known = std::getenv("TMPDIR");
  const std::string usual = known != nullptr ? known : "/tmp";
  ::setenv("TMPDIR", temporary.path("").c_str(), 1);
  RankProcesses processes("wait for the end", {.size = 2, .backend = "shm"});
  ::setenv("TMPDIR", usual.c_str(), 1);
  for (const auto rank : {0, 1}) processes.next_line(rank);
  for (const auto rank : {0, 1}) processes.signal(rank, SIGKILL);
  for (const auto& outcome : processes.wait()) CHECK(outcome.status == 128 + SIGKILL);
  CHECK(temporary.count() == 0);
  std::vector<std::string> added;  // jobs of other tests come and go, too
  const auto start = base::Clock::now();
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const auto now = shared_things();
    added.clear();
    std::ranges::set_difference(now, before, std::back_inserter(added));
  } while (!added.empty() && base::seconds_since(start) < 20);
  CHECK(added == std::vector<std::string>{});
}

// --- host topology -------------------------------------------------------------------------------

TEST_CASE("Hosts are numbered by their first ranks, and a rank without shared memory is named") {
  const comm::HostInfo here{.host = "a", .obstacle = {}};
  const comm::HostInfo elsewhere{.host = "b", .obstacle = {}};
  const comm::HostInfo unable{.host = "a", .obstacle = "no memory"};
  CHECK(comm::rank_obstacle({here, here, elsewhere}).empty());
  CHECK_THAT(comm::rank_obstacle({here, unable}), Names("rank 1", "no memory"));
  CHECK(comm::hosts_of({here, here, here}) == std::vector<std::int64_t>{0, 0, 0});
  CHECK(comm::hosts_of({elsewhere, here, elsewhere}) == std::vector<std::int64_t>{0, 1, 0});
}

std::string name_backend(World& world, const std::string&) {
  world.close_rendezvous();
  world.control().barrier();  // rank 0, which serves the store, leaves last of all
  return std::string(world.backend());
}

const RankProgram backend_name("name backend", name_backend);

TEST_CASE("Automatic choice among processes of one host is shm") {
  for (const auto& outcome : on_processes("name backend", {.size = 2, .backend = "auto"})) {
    CHECK(outcome.text == "shm");
  }
}

}  // namespace
}  // namespace dtrain::testing::comm_shm_test
