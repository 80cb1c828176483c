#include "dtrain/comm/internal/host/meeting.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/base/host/threads.h"
#include "dtrain/base/rank_env.h"

namespace dtrain::comm {

namespace {

using Cause = TransportFailure::Cause;

// About 5 microseconds: what a peer that is not late needs to come, and little to a rank that
// would rather compute.
constexpr int kSpins = 100;
constexpr int kUnknown = -1;

// How long a sleeper sleeps before it looks whether those it waits for still live.
constexpr std::chrono::milliseconds kLookAround(50);

// How many of them it looks after each time: in a large group, all sleepers do.
constexpr std::size_t kLooks = 16;

void raise(Signal& signal, std::uint32_t value) {
  signal.value.store(value);  // sequentially consistent, as is the count of sleepers
  if (signal.sleepers.load() != 0) wake_all(signal.value);
}

/// Returns whether a counter that wraps around has come to `target`.
bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

}  // namespace

Meeting::Meeting(Seat seat, std::shared_ptr<Neighbours> neighbours)
    : seat_(std::move(seat)),
      neighbours_(std::move(neighbours)),
      spins_(neighbours_->num_ranks() <= base::usable_cores() ? kSpins : kUnknown) {
  seat_.block->cpus.add(base::affinity_mask());
}

// Members that are bound to CPUs of their own do not take turns, however few each of them may use.
int Meeting::spins() noexcept {
  const int known = spins_.load(std::memory_order_relaxed);
  if (known != kUnknown) return known;
  const std::optional<bool> are_apart = seat_.block->cpus.are_apart(size());
  if (!are_apart) return 0;
  spins_.store(*are_apart ? kSpins : 0, std::memory_order_relaxed);
  return *are_apart ? kSpins : 0;
}

Meeting::~Meeting() { seat_.block->member(rank()).left.store(1); }

template <typename Ready, typename Missing>
void Meeting::wait(Signal& signal, const base::Deadline& deadline, Ready ready, Missing missing) {
  for (int spin = spins(); spin > 0; --spin) {
    if (ready(signal.value.load(std::memory_order_acquire))) return;
    base::pause_briefly();
  }
  while (true) {
    const std::uint32_t value = signal.value.load();
    if (ready(value)) return;
    if (seat_.block->is_closed()) throw failure_of_closing();
    if (deadline.passed()) throw TransportFailure(Cause::no_answer, missing());
    signal.sleepers.fetch_add(1);
    const bool woken = sleep_on(signal.value, value, std::min(deadline.remaining(), kLookAround));
    signal.sleepers.fetch_sub(1);
    if (woken) continue;
    const auto gone = gone_among(missing());
    // A peer may have done its part, and then ended.
    if (gone.empty() || ready(signal.value.load())) continue;
    culprit_ = gone.front();
    throw TransportFailure(Cause::gone, gone);
  }
}

Slot& Meeting::own_slot() { return seat_.block->member(rank()).slots[(arrivals_ + 1) % 2]; }

// A slot is written by its owner between its arrivals s and s + 1, read by the others between their
// arrivals s + 1 and s + 2, and written again after the owner's arrival s + 2: when all others have
// made theirs. So two slots are enough, as long as the count of arrivals goes on and on.
const Slot& Meeting::slot_of(std::int64_t rank) {
  return seat_.block->member(rank).slots[arrivals_ % 2];
}

void Meeting::exchange(const CollectiveCall& call, const std::byte* payload, std::int64_t bytes,
                       const base::Deadline& deadline) {
  Slot& slot = own_slot();
  slot.offer = {.call = call};
  std::copy_n(payload, bytes, slot.data);
  arrive_with_call(deadline);
}

std::span<const std::byte* const> Meeting::payloads(std::int64_t offset) {
  payloads_.clear();
  for (std::int64_t rank = 0; rank < size(); ++rank) {
    payloads_.push_back(slot_of(rank).data + offset);
  }
  return payloads_;
}

void Meeting::arrive(const base::Deadline& deadline) {
  ControlBlock& block = *seat_.block;
  const std::uint32_t target = ++arrivals_;
  // Everyone's writes come before the last one's opening of the gate: a chain of
  // read-modify-writes.
  const auto all = static_cast<std::uint32_t>(size()) * target;
  const bool last = block.arrived.fetch_add(1) + 1 == all;
  if (last) raise(block.gate, target);
  // Counts only now: a member that dies on the way must be missing while the gate is closed.
  block.member(rank()).arrivals.store(target, std::memory_order_relaxed);
  if (last) return;
  wait(
      block.gate, deadline, [target](std::uint32_t value) { return reached(value, target); },
      [this] {
        std::vector<std::int64_t> missing = not_arrived();
        awaited_ = missing.empty() ? -1 : missing.front();
        return missing;
      });
  awaited_ = -1;
}

void Meeting::arrive_with_call(const base::Deadline& deadline) {
  arrive(deadline);
  const CollectiveCall& call = slot_of(rank()).offer.call;
  for (std::int64_t member = 0; member < size(); ++member) {
    const CollectiveCall& other = slot_of(member).offer.call;
    DTRAIN_CHECK(other == call,
                 "ranks {} and {} of a group made different calls: operation {} of {} elements of "
                 "type {} ({}), operation {} of {} elements of type {} ({})",
                 rank(), member, static_cast<int>(call.op), call.count, call.dtype, call.variant,
                 static_cast<int>(other.op), other.count, other.dtype, other.variant);
  }
}

void Meeting::wait_for_count(Signal& counter, std::uint32_t target, std::int64_t peer,
                             const base::Deadline& deadline) {
  wait(
      counter, deadline, [target](std::uint32_t value) { return reached(value, target); },
      [peer] { return std::vector{peer}; });
}

std::uint32_t Meeting::wait_for_room(std::int64_t peer, const base::Deadline& deadline) {
  Channel& channel = seat_.block->channel(rank(), peer);
  const std::uint32_t number = channel.posted.value.load(std::memory_order_relaxed);
  wait_for_count(channel.taken, number - 1, peer, deadline);
  return number;
}

void Meeting::post(std::int64_t peer, std::uint32_t number, const Piece& piece) {
  Channel& channel = seat_.block->channel(rank(), peer);
  channel.pieces[number % 2] = piece;
  raise(channel.posted, number + 1);
}

void Meeting::wait_until_taken(std::int64_t peer, const base::Deadline& deadline) {
  Channel& channel = seat_.block->channel(rank(), peer);
  const std::uint32_t posted = channel.posted.value.load(std::memory_order_relaxed);
  wait_for_count(channel.taken, posted, peer, deadline);
}

Piece Meeting::wait_for_piece(std::int64_t peer, const base::Deadline& deadline) {
  Channel& channel = seat_.block->channel(peer, rank());
  const std::uint32_t number = channel.taken.value.load(std::memory_order_relaxed);
  wait_for_count(channel.posted, number + 1, peer, deadline);
  return channel.pieces[number % 2];
}

void Meeting::take(std::int64_t peer) {
  Signal& taken = seat_.block->channel(peer, rank()).taken;
  raise(taken, taken.value.load(std::memory_order_relaxed) + 1);
}

std::byte* Meeting::at(std::int64_t rank, std::uint64_t location) const {
  const std::int64_t world_rank = seat_.world_ranks[static_cast<std::size_t>(rank)];
  return reinterpret_cast<std::byte*>(neighbours_->base(world_rank) + location);
}

std::uint64_t Meeting::location_of(const std::byte* data) const {
  const std::int64_t world_rank = seat_.world_ranks[static_cast<std::size_t>(rank())];
  return reinterpret_cast<std::uintptr_t>(data) - neighbours_->base(world_rank);
}

void Meeting::close(const std::string& reason) noexcept {
  seat_.block->close(rank(), culprit_, reason);
}

std::vector<std::int64_t> Meeting::not_arrived() const {
  std::vector<std::int64_t> missing;
  for (std::int64_t member = 0; member < size(); ++member) {
    const auto arrivals = seat_.block->member(member).arrivals.load(std::memory_order_relaxed);
    if (!reached(arrivals, arrivals_)) missing.push_back(member);
  }
  return missing;
}

// Each sleeper looks after a few members at a time, those above it first, so that together they
// look after all of them; a rank alone comes round in time.
std::vector<std::int64_t> Meeting::gone_among(const std::vector<std::int64_t>& ranks) const {
  std::vector<std::int64_t> gone;
  const auto above = std::ranges::upper_bound(ranks, rank()) - ranks.begin();
  const auto first = static_cast<std::size_t>(above) + kLooks * looks_.fetch_add(1);
  for (std::size_t look = 0; look < std::min(kLooks, ranks.size()); ++look) {
    const std::int64_t member = ranks[(first + look) % ranks.size()];
    const std::int64_t world_rank = seat_.world_ranks[static_cast<std::size_t>(member)];
    if (seat_.block->member(member).left.load() != 0 || neighbours_->is_gone(world_rank)) {
      gone.push_back(member);
    }
  }
  std::ranges::sort(gone);
  return gone;
}

TransportFailure Meeting::failure_of_closing() const {
  const Closing& closing = seat_.block->closing;
  if (closing.culprit >= 0) return {Cause::gone, {closing.culprit}};
  if (closing.closer < 0 || closing.closer == rank()) return {Cause::closed, {}, closing.reason};
  return {Cause::gone, {closing.closer}, closing.reason};
}

}  // namespace dtrain::comm
