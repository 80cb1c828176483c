#include "dtrain/comm/internal/host/shm_context.h"

#include <algorithm>

#include "dtrain/base/error.h"
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

void raise(Futex& futex, std::uint32_t value) {
  futex.value.store(value);  // sequentially consistent, as is the count of sleepers
  if (futex.sleepers.load() != 0) wake_all(futex.value);
}

/// Returns whether a wrap-around counter has reached `target`.
bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

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

template <typename Ready, typename Missing>
void ShmContext::wait(Futex& futex, const base::Deadline& deadline, Ready ready, Missing missing) {
  for (int spin = spins(); spin > 0; --spin) {
    if (ready(futex.value.load(std::memory_order_acquire))) return;
    base::pause_briefly();
  }
  while (true) {
    const std::uint32_t value = futex.value.load();
    if (ready(value)) return;
    if (membership_.block->is_closed()) throw close_failure();
    if (deadline.passed()) throw TransportFailure(Cause::no_answer, missing());
    futex.sleepers.fetch_add(1);
    const bool woken =
        sleep_on(futex.value, value, std::min(deadline.remaining(), kLivenessInterval));
    futex.sleepers.fetch_sub(1);
    if (woken) continue;
    const auto exited = exited_among(missing());
    // A peer may have arrived and exited afterwards.
    if (exited.empty() || ready(futex.value.load())) continue;
    culprit_ = exited.front();
    throw TransportFailure(Cause::gone, exited);
  }
}

Slot& ShmContext::own_slot() {
  return membership_.block->member(rank()).slots[(arrivals_ + 1) % 2];
}

// Double buffering: the owner writes a slot between its arrivals s and s + 1, the others read it
// between their arrivals s + 1 and s + 2, and the owner overwrites it after its arrival s + 2, when
// all others have made theirs. This requires that the arrival count is never reset.
const Slot& ShmContext::slot_of(std::int64_t rank) {
  return membership_.block->member(rank).slots[arrivals_ % 2];
}

void ShmContext::exchange(const CollectiveCall& call, const std::byte* payload, std::int64_t bytes,
                          const base::Deadline& deadline) {
  Slot& slot = own_slot();
  slot.buffer = {.call = call};
  std::copy_n(payload, bytes, slot.data);
  arrive_with_call(deadline);
}

std::span<const std::byte* const> ShmContext::payloads(std::int64_t offset) {
  payloads_.clear();
  for (std::int64_t rank = 0; rank < size(); ++rank) {
    payloads_.push_back(slot_of(rank).data + offset);
  }
  return payloads_;
}

void ShmContext::arrive(const base::Deadline& deadline) {
  ControlBlock& block = *membership_.block;
  const std::uint32_t target = ++arrivals_;
  // The chain of read-modify-writes orders every member's writes before the barrier opens.
  const auto all = static_cast<std::uint32_t>(size()) * target;
  const bool last = block.arrived.fetch_add(1) + 1 == all;
  if (last) raise(block.barrier, target);
  // Stored last, so that a member that dies midway counts as missing while the barrier is closed.
  block.member(rank()).arrivals.store(target, std::memory_order_relaxed);
  if (last) return;
  wait(
      block.barrier, deadline, [target](std::uint32_t value) { return reached(value, target); },
      [this] {
        std::vector<std::int64_t> missing = not_arrived();
        awaited_ = missing.empty() ? -1 : missing.front();
        return missing;
      });
  awaited_ = -1;
}

void ShmContext::arrive_with_call(const base::Deadline& deadline) {
  arrive(deadline);
  const CollectiveCall& call = slot_of(rank()).buffer.call;
  for (std::int64_t member = 0; member < size(); ++member) {
    const CollectiveCall& other = slot_of(member).buffer.call;
    DTRAIN_CHECK(other == call,
                 "ranks {} and {} of a group made different calls: operation {} of {} elements of "
                 "type {} ({}), operation {} of {} elements of type {} ({})",
                 rank(), member, static_cast<int>(call.op), call.count, call.dtype, call.variant,
                 static_cast<int>(other.op), other.count, other.dtype, other.variant);
  }
}

void ShmContext::wait_for_count(Futex& counter, std::uint32_t target, std::int64_t peer,
                                const base::Deadline& deadline) {
  wait(
      counter, deadline, [target](std::uint32_t value) { return reached(value, target); },
      [peer] { return std::vector{peer}; });
}

std::uint32_t ShmContext::wait_for_free_chunk(std::int64_t peer, const base::Deadline& deadline) {
  Mailbox& mailbox = membership_.block->mailbox(rank(), peer);
  const std::uint32_t number = mailbox.posted.value.load(std::memory_order_relaxed);
  wait_for_count(mailbox.consumed, number - 1, peer, deadline);
  return number;
}

void ShmContext::post(std::int64_t peer, std::uint32_t number, const Chunk& chunk) {
  Mailbox& mailbox = membership_.block->mailbox(rank(), peer);
  mailbox.chunks[number % 2] = chunk;
  raise(mailbox.posted, number + 1);
}

void ShmContext::wait_until_consumed(std::int64_t peer, const base::Deadline& deadline) {
  Mailbox& mailbox = membership_.block->mailbox(rank(), peer);
  const std::uint32_t posted = mailbox.posted.value.load(std::memory_order_relaxed);
  wait_for_count(mailbox.consumed, posted, peer, deadline);
}

Chunk ShmContext::wait_for_chunk(std::int64_t peer, const base::Deadline& deadline) {
  Mailbox& mailbox = membership_.block->mailbox(peer, rank());
  const std::uint32_t number = mailbox.consumed.value.load(std::memory_order_relaxed);
  wait_for_count(mailbox.posted, number + 1, peer, deadline);
  return mailbox.chunks[number % 2];
}

void ShmContext::consume(std::int64_t peer) {
  Futex& consumed = membership_.block->mailbox(peer, rank()).consumed;
  raise(consumed, consumed.value.load(std::memory_order_relaxed) + 1);
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

std::vector<std::int64_t> ShmContext::not_arrived() const {
  std::vector<std::int64_t> missing;
  for (std::int64_t member = 0; member < size(); ++member) {
    const auto arrivals =
        membership_.block->member(member).arrivals.load(std::memory_order_relaxed);
    if (!reached(arrivals, arrivals_)) missing.push_back(member);
  }
  return missing;
}

// Each waiting rank checks a few members at a time, starting above its own rank, so that together
// they cover all members; a single waiting rank covers them round-robin.
std::vector<std::int64_t> ShmContext::exited_among(const std::vector<std::int64_t>& ranks) const {
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
