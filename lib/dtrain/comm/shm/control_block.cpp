#include "dtrain/comm/shm/control_block.h"

#include <algorithm>

#include "dtrain/base/number.h"
#include "dtrain/comm/shm/futex.h"

namespace dtrain::comm {

namespace {

void wake_sleepers(Signal& signal) noexcept {
  if (signal.sleepers.load() != 0) wake_all(signal.value);
}

}  // namespace

std::int64_t ControlBlock::bytes_for(std::int64_t size) {
  return static_cast<std::int64_t>(sizeof(ControlBlock)) +
         size * static_cast<std::int64_t>(sizeof(Member)) +
         size * size * static_cast<std::int64_t>(sizeof(Channel));
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

Channel& ControlBlock::channel(std::int64_t from, std::int64_t to) {
  return reinterpret_cast<Channel*>(&member(size))[from * size + to];
}

void ControlBlock::close(std::int64_t closer, std::int64_t culprit,
                         std::string_view reason) noexcept {
  std::uint32_t open = Closing::kOpen;
  if (!closing.state.compare_exchange_strong(open, Closing::kBeingWritten)) return;
  closing.closer = closer;
  closing.culprit = culprit;
  const std::size_t length = std::min(reason.size(), sizeof closing.reason - 1);
  std::copy_n(reason.data(), length, closing.reason);
  closing.reason[length] = '\0';
  closing.state.store(Closing::kClosed);
  wake_sleepers(gate);
  for (std::int64_t from = 0; from < size; ++from) {
    for (std::int64_t to = 0; to < size; ++to) {
      wake_sleepers(channel(from, to).posted);
      wake_sleepers(channel(from, to).taken);
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
