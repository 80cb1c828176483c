// Defines the wire protocol between ranks and the rendezvous store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/net/message.h"

namespace dtrain::comm {

/// The first bytes that the store sends (net/handshake.h), with the protocol's version.
inline constexpr std::string_view kStoreGreeting = "dtrain/3";

/// A rank's requests to the store. wait: until the job fails, or for the given time.
enum class StoreRequest : std::uint8_t { gather = 1, wait = 2, fail = 3, leave = 4 };

/// The store's answers. job_failed: followed by the kind and text of the error.
enum class StoreReply : std::uint8_t { done = 1, job_failed = 2 };

/// The longest message between a rank and the store.
inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{64} << 20;

/// Decodes the error kind of a failure; comm for an unknown number, which must not become an exit
/// status.
[[nodiscard]] base::ErrorKind failure_kind(std::uint64_t number);

/// Encodes ranks as runs of equally spaced ones: groups along mesh axes have few runs.
void write_ranks(net::MessageWriter& writer, const std::vector<std::int64_t>& ranks);

/// Decodes ranks up to the end of the message; empty if malformed or more than `max_ranks`.
[[nodiscard]] std::optional<std::vector<std::int64_t>> read_ranks(net::MessageReader& reader,
                                                                  std::int64_t max_ranks);

/// The result of a gather through the store.
struct GatherResult {
  std::vector<std::int64_t> missing = {};  ///< members that did not join in time
  std::vector<std::string> values = {};    ///< by member; empty while anyone is missing
};

/// Run-length encodes equal values of consecutive members: most ranks of a host send the same.
[[nodiscard]] std::string packed(const GatherResult& result);
/// Decodes what packed() wrote; empty if malformed.
[[nodiscard]] std::optional<GatherResult> unpacked_result(std::string_view text);

}  // namespace dtrain::comm
