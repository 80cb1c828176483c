// Integer types in other trainers' token files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::data {

/// A little-endian integer type.
struct NumberType {
  std::int64_t bytes = 2;  ///< 1, 2, 4 or 8
  bool is_signed = false;
};

/// NumPy's name of the type, such as "uint16".
[[nodiscard]] std::string name_of(NumberType type);

/// Returns the type named [u]int8, 16, 32 or 64, if any.
[[nodiscard]] std::optional<NumberType> number_type_named(std::string_view name);

/// Lists the names of all types, for messages.
[[nodiscard]] std::string number_type_names();

/// Decodes `bytes`, whose size is a multiple of the type's. A uint64 above 2^63 - 1 becomes the
/// negative number with the same bits.
[[nodiscard]] std::vector<std::int64_t> numbers_of(std::span<const std::byte> bytes,
                                                   NumberType type);

/// Formats a number returned by numbers_of as its type represents it.
[[nodiscard]] std::string text_of(std::int64_t number, NumberType type);

}  // namespace dtrain::data
