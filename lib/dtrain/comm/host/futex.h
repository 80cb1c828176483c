// Sleeps on a word of memory that processes share. Private to comm.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace dtrain::comm {

/// Sleeps while `word` holds `expected`, until woken or for `limit`; may return early for no
/// reason. False: the limit has passed.
bool sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t expected,
              std::chrono::nanoseconds limit);

/// Wakes all who sleep on `word`.
void wake_all(std::atomic<std::uint32_t>& word) noexcept;

}  // namespace dtrain::comm
