// The words that ranks and the store exchange. Private to comm.
#pragma once

#include <cstdint>
#include <string_view>

namespace dtrain::comm {

/// The first bytes that the store sends (net/handshake.h); the number is the protocol's.
inline constexpr std::string_view kStoreGreeting = "dtrain/3";

/// Requests of a rank to the store that rank 0 serves.
enum class StoreRequest : std::uint8_t { set = 1, get = 2, meet = 3, refuse = 4, leave = 5 };

/// How it answers. refused: the job cannot start, with the kind of error and its text.
enum class StoreReply : std::uint8_t { done = 1, absent = 2, refused = 3 };

/// The longest message of a rank or the store.
inline constexpr std::uint64_t kMostMessageBytes = std::uint64_t{64} << 20;

}  // namespace dtrain::comm
