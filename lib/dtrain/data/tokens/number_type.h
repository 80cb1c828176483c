// The types of numbers in other trainers' token files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::data {

/// A type of whole numbers, little-endian.
struct NumberType {
  std::int64_t bytes = 2;  ///< 1, 2, 4 or 8
  bool is_signed = false;
};

/// As NumPy names it: "uint16".
[[nodiscard]] std::string name_of(NumberType type);

/// The type of this name, if there is one: [u]int8, 16, 32 or 64.
[[nodiscard]] std::optional<NumberType> number_type_named(std::string_view name);

/// The names of all types, for messages.
[[nodiscard]] std::string number_type_names();

/// The numbers in `bytes`, whose size is a multiple of the type's. A uint64 above 2^63 - 1 comes as
/// the negative number of the same bits.
[[nodiscard]] std::vector<std::int64_t> numbers_of(std::span<const std::byte> bytes,
                                                   NumberType type);

/// A number of numbers_of as its file means it.
[[nodiscard]] std::string text_of(std::int64_t number, NumberType type);

}  // namespace dtrain::data
