// Repeated calls over shared memory allocate nothing.
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

#include "support/ranks/local_ranks.h"

namespace {

std::atomic<std::int64_t> allocations{0};  // of this process

}  // namespace

// Includes allocations of all libraries. The other forms of new and delete call these.
void* operator new(std::size_t size, std::align_val_t alignment) {
  ++allocations;
  const auto unit = static_cast<std::size_t>(alignment);
  void* const memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit + (size == 0));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size) { return operator new(size, std::align_val_t(16)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace dtrain::testing::comm_allocations_test {
namespace {

constexpr int kRepetitions = 200;
constexpr int kSmallRounds = 4;  // of a repetition: 32 calls, a block of a queue

/// All kinds of calls, on tensors that are made once.
class RepeatedCalls {
 public:
  RepeatedCalls(comm::World& world, std::int64_t elements)
      : group_(group_of_all(world)),
        own_(at::ones({elements})),
        shared_(world.allocate(4 * elements).view(at::kFloat).fill_(1)),
        slice_(at::ones({elements / group_->size()})),
        received_(at::ones({elements})),
        counts_(static_cast<std::size_t>(group_->size()), slice_.numel()) {}

  void round() {
    const std::int64_t next = (group_->rank() + 1) % group_->size();
    const std::int64_t previous = (group_->rank() + group_->size() - 1) % group_->size();
    group_->all_reduce(own_, comm::ReduceOp::max).wait();
    group_->all_reduce(shared_, comm::ReduceOp::max).wait();
    group_->reduce_scatter(own_, slice_).wait();
    group_->all_gather(slice_, received_).wait();
    group_->all_gather_v(slice_, received_, counts_).wait();
    group_->all_to_all(own_, counts_, received_, counts_).wait();
    group_->broadcast(shared_, 0).wait();
    comm::Work sent = group_->send(own_, next);
    group_->recv(received_, previous).wait();
    sent.wait();
    group_->barrier();
  }

 private:
  std::shared_ptr<comm::ProcessGroup> group_;
  at::Tensor own_;
  at::Tensor shared_;
  at::Tensor slice_;
  at::Tensor received_;
  std::vector<std::int64_t> counts_;
};

std::string count_allocations(comm::World& world, const std::string&) {
  RepeatedCalls small(world, 96);
  RepeatedCalls large(world, 3 << 18);
  // A rank that waits for 50 ms allocates when it checks whether its peers are alive, and the queue
  // grows when more calls than before are in flight. So the minimum over many repetitions counts
  // the allocations of the calls themselves.
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const std::int64_t before = allocations;
    for (int round = 0; round < kSmallRounds; ++round) small.round();
    large.round();
    fewest = std::min<std::int64_t>(fewest, allocations - before);
  }
  return fmt::format("{} allocations", fewest);
}

const RankProgram allocations_program("count allocations", count_allocations);

TEST_CASE("Repeated calls over shared memory allocate nothing") {
  const std::int64_t size = GENERATE(2, 3);
  for (const RankOutcome& outcome :
       on_processes("count allocations", {.size = size, .backend = "shm"})) {
    CHECK(outcome.text == "0 allocations");
    CHECK(outcome.status == 0);
  }
}

TEST_CASE("The counter of allocations counts") {
  const std::int64_t before = allocations;
  const auto memory = std::make_unique<std::vector<int>>(3);
  CHECK(allocations - before == 2);
  CHECK(memory->size() == 3);
}

}  // namespace
}  // namespace dtrain::testing::comm_allocations_test
