// The control block of a shared-memory group: plain structs for synchronisation and small payloads,
// mapped at a different address in each process.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "dtrain/base/host/cpu_list.h"

namespace dtrain::comm {

/// Contributions of up to this many bytes are exchanged within the control block, in one round.
inline constexpr std::int64_t kSmallBytes = 8 << 10;

enum class Collective : std::int32_t {
  barrier,
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
};

/// Identifies a collective call; every rank of the group must make the same one.
struct CollectiveCall {
  Collective op = Collective::barrier;
  std::int32_t dtype = 0;    ///< an at::ScalarType
  std::int64_t count = 0;    ///< elements that each rank contributes; of a gather, in total
  std::int64_t variant = 0;  ///< the ReduceOp, the root of a broadcast, or a hash of the counts

  bool operator==(const CollectiveCall&) const = default;
};

/// Location of a rank's tensor in a collective call, for the other ranks.
struct BufferDescriptor {
  CollectiveCall call;
  std::uint64_t location = 0;  ///< of its tensor or chunks: bytes from the start of its memory
  std::uint32_t staged = 0;    ///< 1: `location` is its staging area, which holds a chunk at a time
  std::uint32_t has_more = 0;  ///< 1: another round of an all_to_all follows
};

/// A futex word, which counts up and wraps around, and the number of its sleepers.
struct Futex {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};
};

/// Returns whether a wrap-around counter has reached `target`.
[[nodiscard]] inline bool has_reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

/// Sleeps while `futex` holds `expected`, until woken or for `limit`; spurious wake-ups are
/// possible. Returns false if the limit has passed.
bool sleep_on(Futex& futex, std::uint32_t expected, std::chrono::nanoseconds limit);

/// Sets the value and wakes the sleepers.
void advance(Futex& futex, std::uint32_t value) noexcept;

/// Values that a member publishes when it arrives at a barrier.
struct alignas(64) Slot {
  BufferDescriptor buffer;
  alignas(64) std::byte data[kSmallBytes];
};

struct alignas(64) Member {
  std::atomic<std::uint32_t> arrivals{0};  ///< its arrivals at the barrier; never reset
  std::atomic<std::uint32_t> left{0};      ///< 1: it has left the group
  Slot slots[2];  ///< by parity of the arrival with which they are published
};

/// Detects whether members share CPUs.
class alignas(64) CpuClaims {
 public:
  /// Adds the CPUs that a member may run on. Each member calls it once.
  void add(const base::CpuList& cpus) noexcept;
  /// True if no CPU is claimed by two members; empty until `members` members have called add().
  [[nodiscard]] std::optional<bool> are_disjoint(std::int64_t members) const noexcept;

 private:
  static constexpr std::size_t kWords = 16;  // of 64 CPUs each

  std::atomic<std::uint64_t> claimed_[kWords]{};
  std::atomic<std::uint32_t> clashes_{0};
  std::atomic<std::uint32_t> members_{0};
};

/// A chunk of a message.
struct Chunk {
  std::uint64_t location = 0;  ///< bytes from the start of the sender's memory
  std::int64_t bytes = 0;
  std::int64_t message_bytes = 0;  ///< of the whole message
};

/// Carries messages from one member to another as numbered chunks, at most two of them in flight.
struct alignas(64) Mailbox {
  Futex posted;                ///< chunks posted by the sender; never reset
  Chunk chunks[2];             ///< by parity of the chunk's number
  alignas(64) Futex consumed;  ///< chunks that the receiver has copied; never reset
};

/// Close state of the group, and its reason.
struct CloseState {
  static constexpr std::uint32_t kOpen = 0;
  static constexpr std::uint32_t kBeingWritten = 1;
  static constexpr std::uint32_t kClosed = 2;

  std::atomic<std::uint32_t> state{kOpen};
  std::int64_t closer = -1;   ///< the member that closed it; -1: no single member
  std::int64_t culprit = -1;  ///< the member whose exit caused it; -1: the closer's own decision
  char reason[1024]{};
};

/// Followed in memory by `size` Members, a bit for each Mailbox in use, and size * size Mailboxes,
/// of which only those in use are touched. A new group is all zeros, except for the ranks in
/// CloseState, which are meaningless until it is closed.
struct alignas(64) ControlBlock {
  std::int64_t size = 0;                              ///< members
  alignas(64) std::atomic<std::uint32_t> arrived{0};  ///< arrivals of all members
  Futex barrier;                                      ///< arrivals completed by all members
  CpuClaims cpus;
  alignas(64) CloseState close_state;

  [[nodiscard]] static std::int64_t bytes_for(std::int64_t size);
  /// Bytes before the mailboxes. Most mailboxes are never used.
  [[nodiscard]] static std::int64_t common_bytes_for(std::int64_t size);
  /// Parses the offset of a block for `size` members; empty unless it fits into `room` bytes.
  [[nodiscard]] static std::optional<std::int64_t> offset_of(std::string_view text,
                                                             std::int64_t size, std::int64_t room);
  [[nodiscard]] Member& member(std::int64_t rank);
  /// Returns a mailbox and marks it as in use.
  [[nodiscard]] Mailbox& mailbox(std::int64_t from, std::int64_t to);

  /// Closes the group and wakes all sleepers; only the first call's reason is kept. Threads: any.
  void close(std::int64_t closer, std::int64_t culprit, std::string_view reason) noexcept;
  [[nodiscard]] bool is_closed() const noexcept {
    return close_state.state.load(std::memory_order_acquire) == CloseState::kClosed;
  }
  /// Returns whether every member has left the group.
  [[nodiscard]] bool is_abandoned();

 private:
  [[nodiscard]] std::atomic<std::uint64_t>* bits_in_use();
  [[nodiscard]] Mailbox* mailboxes();
};

}  // namespace dtrain::comm
