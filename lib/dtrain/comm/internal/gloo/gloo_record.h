// What gloo's TCP transport tells the members of a group about one of them, and its short form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::comm {

/// A member's record: where it listens, and by which number each other member's connection says for
/// which pair it is. gloo writes a number of 8 bytes for each member, but they are consecutive.
struct GlooRecord {
  std::string endpoint;           ///< the port and the address of IPv4 or IPv6, 6 or 18 bytes
  std::int64_t first_number = 0;  ///< of the group's first member

  bool operator==(const GlooRecord&) const = default;
};

/// Whether bytes of another rank can be its endpoint.
[[nodiscard]] bool is_endpoint(std::string_view bytes);

/// Takes apart what gloo writes for a group of so many members.
///
/// Throws: Error{usage} where an environment variable makes gloo leave out the numbers;
///         Error{internal} for what the gloo of this LibTorch does not write.
[[nodiscard]] GlooRecord parse_record(std::string_view bytes, std::size_t num_members);

/// The same record as gloo reads it, without the host's name, which it only counts ranks by.
///
/// Requires: is_endpoint(record.endpoint).
[[nodiscard]] std::string record_bytes(const GlooRecord& record, std::size_t num_members);

}  // namespace dtrain::comm
