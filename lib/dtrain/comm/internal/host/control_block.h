// The memory that ranks of one shm group share besides their tensors: plain structs, which each
// rank may see at another address.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "dtrain/base/host/cpu_list.h"

namespace dtrain::comm {

/// Contributions of up to this many bytes travel within the control block, in one round.
inline constexpr std::int64_t kSmallBytes = 8 << 10;

enum class Collective : std::int32_t {
  barrier,
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
};

/// A collective call as every rank of the group should have made it.
struct CollectiveCall {
  Collective op = Collective::barrier;
  std::int32_t dtype = 0;    ///< an at::ScalarType
  std::int64_t count = 0;    ///< elements that each rank contributes; of a gather, all ranks
  std::int64_t variant = 0;  ///< the ReduceOp, the root of a broadcast, or a hash of the counts

  bool operator==(const CollectiveCall&) const = default;
};

/// A rank's announcement to the others at the start of a collective call.
struct Offer {
  CollectiveCall call;
  std::uint64_t location = 0;  ///< of its tensor or pieces: bytes from the start of its memory
  std::uint32_t staged = 0;    ///< 1: its staging area lies there, with one chunk at a time
  std::uint32_t has_more = 0;  ///< 1: another round of an all_to_all follows
};

/// Sleeps while `word` holds `expected`, until woken or for `limit`; may return early for no
/// reason. False: the limit has passed.
bool sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t expected,
              std::chrono::nanoseconds limit);

/// Wakes all who sleep on `word`.
void wake_all(std::atomic<std::uint32_t>& word) noexcept;

/// A word to sleep on, and how many sleep.
struct Signal {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};
};

struct alignas(64) Slot {
  Offer offer;
  alignas(64) std::byte data[kSmallBytes];
};

struct alignas(64) Member {
  std::atomic<std::uint32_t> arrivals{0};  ///< how often it came to the gate; never reset
  std::atomic<std::uint32_t> left{0};      ///< 1: it has let go of the group
  Slot slots[2];  ///< by parity of the arrival with which they are published
};

/// The CPUs that members may run on.
class alignas(64) CpuClaims {
 public:
  /// Each member calls it once.
  void add(const base::CpuList& cpus) noexcept;
  /// True if no CPU is claimed by two members; none before `members` members have called add().
  [[nodiscard]] std::optional<bool> are_apart(std::int64_t members) const noexcept;

 private:
  static constexpr std::size_t kWords = 16;  // of 64 CPUs each

  std::atomic<std::uint64_t> claimed_[kWords]{};
  std::atomic<std::uint32_t> clashes_{0};
  std::atomic<std::uint32_t> members_{0};
};

/// A part of a message.
struct Piece {
  std::uint64_t location = 0;  ///< bytes from the start of the sender's memory
  std::int64_t bytes = 0;
  std::int64_t message_bytes = 0;  ///< of the whole message
};

/// Messages from one member to another: numbered pieces, at most two of them posted and not taken.
struct alignas(64) Channel {
  Signal posted;             ///< pieces laid out by the sender; never reset
  Piece pieces[2];           ///< by parity of the piece's number
  alignas(64) Signal taken;  ///< pieces that the receiver has copied; never reset
};

/// Why the group is dead.
struct Closing {
  static constexpr std::uint32_t kOpen = 0;
  static constexpr std::uint32_t kBeingWritten = 1;
  static constexpr std::uint32_t kClosed = 2;

  std::atomic<std::uint32_t> state{kOpen};
  std::int64_t closer = -1;   ///< the member that closed it; -1: nobody in particular
  std::int64_t culprit = -1;  ///< the member whose death made it do so; -1: its own decision
  char reason[1024]{};
};

/// Followed by `size` Members, a bit for each Channel that is in use, and size * size Channels, of
/// which only those in use are ever touched. A new group has zeros everywhere except in Closing's
/// ranks, which have no meaning before it is closed.
struct alignas(64) ControlBlock {
  std::int64_t size = 0;                              ///< members
  alignas(64) std::atomic<std::uint32_t> arrived{0};  ///< arrivals of all members
  Signal gate;                                        ///< arrivals that all members have made
  CpuClaims cpus;
  alignas(64) Closing closing;

  [[nodiscard]] static std::int64_t bytes_for(std::int64_t size);
  /// The part of them before the channels: most pairs of members never send each other anything.
  [[nodiscard]] static std::int64_t common_bytes_for(std::int64_t size);
  /// The offset in `text` of a block for `size` members, if it can be one in `room` bytes.
  [[nodiscard]] static std::optional<std::int64_t> offset_of(std::string_view text,
                                                             std::int64_t size, std::int64_t room);
  [[nodiscard]] Member& member(std::int64_t rank);
  /// From now on it is in use.
  [[nodiscard]] Channel& channel(std::int64_t from, std::int64_t to);

  /// The first to close a group says why; wakes everyone who sleeps. Threads: any.
  void close(std::int64_t closer, std::int64_t culprit, std::string_view reason) noexcept;
  [[nodiscard]] bool is_closed() const noexcept {
    return closing.state.load(std::memory_order_acquire) == Closing::kClosed;
  }
  /// Returns whether every member has let go of the group.
  [[nodiscard]] bool is_abandoned();

 private:
  [[nodiscard]] std::atomic<std::uint64_t>* bits_in_use();
  [[nodiscard]] Channel* channels();
};

}  // namespace dtrain::comm
