#include "dtrain/comm/internal/host/shm_context.h"

#include <algorithm>

#include "dtrain/base/host/threads.h"
#include "dtrain/base/rank_env.h"

namespace dtrain::comm {

namespace {

using Cause = TransportFailure::Cause;

// About 5 microseconds: enough for a punctual peer to arrive, and cheap for a rank that could
// compute instead.
constexpr int kSpins = 100;
constexpr int kUnknown = -1;

// How long a waiting rank sleeps between checks that its peers are alive.
constexpr std::chrono::milliseconds kLivenessInterval(50);

// Peers checked each time: in a large group the waiting ranks share the work.
constexpr std::size_t kPeersPerCheck = 16;

}  // namespace

ShmContext::ShmContext(GroupMembership membership, std::shared_ptr<PeerMemory> peer_memory)
    : membership_(std::move(membership)),
      peer_memory_(std::move(peer_memory)),
      spins_(peer_memory_->num_ranks() <= base::usable_cores() ? kSpins : kUnknown) {
  membership_.block->cpus.add(base::affinity_mask());
}

// Spins only if no two members share a CPU.
int ShmContext::spins() noexcept {
  const int known = spins_.load(std::memory_order_relaxed);
  if (known != kUnknown) return known;
  const std::optional<bool> are_disjoint = membership_.block->cpus.are_disjoint(size());
  if (!are_disjoint) return 0;
  spins_.store(*are_disjoint ? kSpins : 0, std::memory_order_relaxed);
  return *are_disjoint ? kSpins : 0;
}

ShmContext::~ShmContext() { membership_.block->member(rank()).left.store(1); }

void ShmContext::wait(Futex& counter, std::uint32_t target, const base::Deadline& deadline,
                      const std::function<std::vector<std::int64_t>()>& missing) {
  for (int spin = spins(); spin > 0; --spin) {
    if (has_reached(counter.value.load(std::memory_order_acquire), target)) return;
    base::pause_briefly();
  }
  while (true) {
    const std::uint32_t value = counter.value.load();
    if (has_reached(value, target)) return;
    if (membership_.block->is_closed()) throw close_failure();
    if (deadline.passed()) throw TransportFailure(Cause::no_answer, missing());
    if (sleep_on(counter, value, std::min(deadline.remaining(), kLivenessInterval))) continue;
    const auto exited = exited_among(missing());
    // A peer may have arrived and exited afterwards.
    if (exited.empty() || has_reached(counter.value.load(), target)) continue;
    culprit_ = exited.front();
    throw TransportFailure(Cause::gone, exited);
  }
}

std::byte* ShmContext::at(std::int64_t rank, std::uint64_t location) const {
  const std::int64_t world_rank = membership_.world_ranks[static_cast<std::size_t>(rank)];
  return reinterpret_cast<std::byte*>(peer_memory_->base(world_rank) + location);
}

std::uint64_t ShmContext::location_of(const std::byte* data) const {
  const std::int64_t world_rank = membership_.world_ranks[static_cast<std::size_t>(rank())];
  return reinterpret_cast<std::uintptr_t>(data) - peer_memory_->base(world_rank);
}

void ShmContext::close(const std::string& reason) noexcept {
  membership_.block->close(rank(), culprit_, reason);
}

// Each waiting rank checks a few members at a time, starting above its own rank, so that together
// they cover all members; a single waiting rank covers them round-robin.
std::vector<std::int64_t> ShmContext::exited_among(const std::vector<std::int64_t>& ranks) {
  std::vector<std::int64_t> exited;
  const auto above = std::ranges::upper_bound(ranks, rank()) - ranks.begin();
  const auto first =
      static_cast<std::size_t>(above) + kPeersPerCheck * liveness_round_.fetch_add(1);
  for (std::size_t look = 0; look < std::min(kPeersPerCheck, ranks.size()); ++look) {
    const std::int64_t member = ranks[(first + look) % ranks.size()];
    const std::int64_t world_rank = membership_.world_ranks[static_cast<std::size_t>(member)];
    if (membership_.block->member(member).left.load() != 0 ||
        peer_memory_->has_exited(world_rank)) {
      exited.push_back(member);
    }
  }
  std::ranges::sort(exited);
  return exited;
}

TransportFailure ShmContext::close_failure() const {
  const CloseState& close_state = membership_.block->close_state;
  if (close_state.culprit >= 0) return {Cause::gone, {close_state.culprit}};
  if (close_state.closer < 0 || close_state.closer == rank())
    return {Cause::closed, {}, close_state.reason};
  return {Cause::gone, {close_state.closer}, close_state.reason};
}

}  // namespace dtrain::comm
