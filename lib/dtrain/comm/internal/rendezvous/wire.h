// The words that ranks and the store exchange.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/net/message.h"

namespace dtrain::comm {

/// The first bytes that the store sends (net/handshake.h); the number is the protocol's.
inline constexpr std::string_view kStoreGreeting = "dtrain/3";

/// Requests of a rank to the store that rank 0 serves.
/// wait: until the job is refused, or for as long as the rank says.
enum class StoreRequest : std::uint8_t { meet = 1, wait = 2, refuse = 3, leave = 4 };

/// How it answers. refused: the job cannot start, with the kind of error and its text.
enum class StoreReply : std::uint8_t { done = 1, refused = 2 };

/// The longest message of a rank or the store.
inline constexpr std::uint64_t kMostMessageBytes = std::uint64_t{64} << 20;

/// The kind that the number of a refusal means; comm for one that the other side made up, which
/// must not become an exit status.
[[nodiscard]] base::ErrorKind kind_of_refusal(std::uint64_t number);

/// Writes ranks as the few runs of equally spaced ones that they are: groups lie along the axes of
/// a mesh.
void write_ranks(net::MessageWriter& writer, const std::vector<std::int64_t>& ranks);

/// Reads up to the message's end; nothing for what write_ranks did not write, or for more than
/// `most` ranks.
[[nodiscard]] std::optional<std::vector<std::int64_t>> read_ranks(net::MessageReader& reader,
                                                                  std::int64_t most);

/// The outcome of a meeting of some ranks at the store, where each leaves a note for all.
struct Attendance {
  std::vector<std::int64_t> missing = {};  ///< members that did not come in time
  std::vector<std::string> notes = {};     ///< by member; empty while anyone is missing
};

/// Equal notes of neighbouring members are said once: most are those of a host.
[[nodiscard]] std::string packed(const Attendance& attendance);
/// Nothing for a text that packed() did not write.
[[nodiscard]] std::optional<Attendance> unpacked_attendance(std::string_view text);

}  // namespace dtrain::comm
