// The words that ranks and the store exchange. Private to comm.
#pragma once

#include <cstdint>
#include <string_view>

namespace dtrain::comm {

/// Requests of a rank to the store that rank 0 serves.
enum class StoreRequest : std::uint8_t { set = 1, get = 2, meet = 3, refuse = 4, leave = 5 };

/// How it answers. refused: the job cannot start, with the kind of error and its text.
/// `unknown`: the answer to a rank that does not prove that it knows the job's secret.
enum class StoreReply : std::uint8_t { done = 1, absent = 2, refused = 3, unknown = 4 };

/// The first bytes that the store sends; the number is the protocol's.
inline constexpr std::string_view kStoreGreeting = "dtrain/2";

/// How the two ends of a connection know each other; the store says it after its greeting.
enum class Trust : std::uint8_t {
  handed_down = 1,  ///< the connection came through a socket that dtrun made
  same_user = 2,    ///< TCP within one machine: the kernel says whose the sockets are
  token = 3,        ///< both prove that they know the job's secret
  munge = 4,        ///< the same; rank 0 made the secret, and munge shows it to this user alone
};

/// The longest message, and the longest from a sender who has not proved to be a rank.
inline constexpr std::uint64_t kMostMessageBytes = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kMostHelloBytes = 256;

}  // namespace dtrain::comm
