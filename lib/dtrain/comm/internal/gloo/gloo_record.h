// Compact form of the connection record that gloo's TCP transport publishes for each group member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::comm {

/// A member's record: its listening address, and the numbers of its connections to the other
/// members. gloo writes an 8-byte number per member; they are consecutive, so the first one
/// suffices.
struct GlooRecord {
  std::string endpoint;           ///< port and IPv4 or IPv6 address, 6 or 18 bytes
  std::int64_t first_number = 0;  ///< the number for the group's first member

  bool operator==(const GlooRecord&) const = default;
};

/// Returns whether bytes have the size of an endpoint.
[[nodiscard]] bool is_endpoint(std::string_view bytes);

/// Parses the record that gloo writes for a group of `num_members`.
///
/// Throws: Error{usage} if an environment variable makes gloo omit the numbers; Error{internal} for
///         a format that this LibTorch's gloo does not write.
[[nodiscard]] GlooRecord parse_record(std::string_view bytes, std::size_t num_members);

/// Encodes the record for gloo, without the host name, which gloo uses only to count local ranks.
///
/// Requires: is_endpoint(record.endpoint).
[[nodiscard]] std::string record_bytes(const GlooRecord& record, std::size_t num_members);

}  // namespace dtrain::comm
