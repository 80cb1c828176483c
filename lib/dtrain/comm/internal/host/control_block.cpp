#include "dtrain/comm/internal/host/control_block.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <ctime>

#include "dtrain/base/text/number.h"

namespace dtrain::comm {

namespace {

// Without FUTEX_PRIVATE_FLAG, here and in sleep_on: the sleepers may be other processes.
void wake_sleepers(Futex& futex) noexcept {
  if (futex.sleepers.load() == 0) return;
  ::syscall(SYS_futex, &futex.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

constexpr std::int64_t kWordBits = 64;

std::int64_t words_for(std::int64_t size) { return (size * size + kWordBits - 1) / kWordBits; }

}  // namespace

static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

bool sleep_on(Futex& futex, std::uint32_t expected, std::chrono::nanoseconds limit) {
  constexpr std::int64_t kNanos = 1'000'000'000;
  timespec time{};
  time.tv_sec = limit.count() / kNanos;
  time.tv_nsec = limit.count() % kNanos;
  futex.sleepers.fetch_add(1);
  const long result = ::syscall(SYS_futex, &futex.value, FUTEX_WAIT, expected, &time, nullptr, 0);
  const bool timed_out = result != 0 && errno == ETIMEDOUT;
  futex.sleepers.fetch_sub(1);
  return !timed_out;
}

void advance(Futex& futex, std::uint32_t value) noexcept {
  futex.value.store(value);  // sequentially consistent, as is the count of sleepers
  wake_sleepers(futex);
}

void CpuClaims::add(const base::CpuList& cpus) noexcept {
  if (cpus.empty()) clashes_.store(1);  // nobody knows
  for (const int cpu : cpus) {
    const auto index = static_cast<std::size_t>(cpu);
    const std::uint64_t bit = std::uint64_t{1} << (index % kWordBits);
    const bool is_known = index / kWordBits < kWords;
    if (!is_known || (claimed_[index / kWordBits].fetch_or(bit) & bit) != 0) clashes_.store(1);
  }
  members_.fetch_add(1);
}

std::optional<bool> CpuClaims::are_disjoint(std::int64_t members) const noexcept {
  if (members_.load() < members) return std::nullopt;
  return clashes_.load() == 0;
}

std::int64_t ControlBlock::common_bytes_for(std::int64_t size) {
  constexpr auto kAlignment = static_cast<std::int64_t>(alignof(Mailbox));
  const std::int64_t bits = words_for(size) * static_cast<std::int64_t>(sizeof(std::uint64_t));
  return static_cast<std::int64_t>(sizeof(ControlBlock)) +
         size * static_cast<std::int64_t>(sizeof(Member)) +
         (bits + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t ControlBlock::bytes_for(std::int64_t size) {
  return common_bytes_for(size) + size * size * static_cast<std::int64_t>(sizeof(Mailbox));
}

std::optional<std::int64_t> ControlBlock::offset_of(std::string_view text, std::int64_t size,
                                                    std::int64_t room) {
  const auto offset = base::number_in<std::int64_t>(text);
  const auto alignment = static_cast<std::int64_t>(alignof(ControlBlock));
  const bool fits = offset && *offset >= 0 && *offset % alignment == 0 && bytes_for(size) <= room &&
                    *offset <= room - bytes_for(size);
  return fits ? offset : std::nullopt;
}

Member& ControlBlock::member(std::int64_t rank) {
  return reinterpret_cast<Member*>(this + 1)[rank];
}

std::atomic<std::uint64_t>* ControlBlock::bits_in_use() {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(&member(size));
}

Mailbox* ControlBlock::mailboxes() {
  return reinterpret_cast<Mailbox*>(reinterpret_cast<std::byte*>(this) + common_bytes_for(size));
}

Mailbox& ControlBlock::mailbox(std::int64_t from, std::int64_t to) {
  const std::int64_t number = from * size + to;
  const std::uint64_t bit = std::uint64_t{1} << (number % kWordBits);
  std::atomic<std::uint64_t>& word = bits_in_use()[number / kWordBits];
  if ((word.load(std::memory_order_relaxed) & bit) == 0) word.fetch_or(bit);
  return mailboxes()[number];
}

void ControlBlock::close(std::int64_t closer, std::int64_t culprit,
                         std::string_view reason) noexcept {
  std::uint32_t open = CloseState::kOpen;
  if (!close_state.state.compare_exchange_strong(open, CloseState::kBeingWritten)) return;
  close_state.closer = closer;
  close_state.culprit = culprit;
  const std::size_t length = std::min(reason.size(), sizeof close_state.reason - 1);
  std::copy_n(reason.data(), length, close_state.reason);
  close_state.reason[length] = '\0';
  close_state.state.store(CloseState::kClosed);
  wake_sleepers(barrier);
  for (std::int64_t index = 0; index < words_for(size); ++index) {
    for (std::uint64_t bits = bits_in_use()[index].load(); bits != 0; bits &= bits - 1) {
      Mailbox& mailbox = mailboxes()[index * kWordBits + std::countr_zero(bits)];
      wake_sleepers(mailbox.posted);
      wake_sleepers(mailbox.consumed);
    }
  }
}

bool ControlBlock::is_abandoned() {
  for (std::int64_t rank = 0; rank < size; ++rank) {
    if (member(rank).left.load() == 0) return false;
  }
  return true;
}

}  // namespace dtrain::comm
