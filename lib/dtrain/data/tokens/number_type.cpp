#include "dtrain/data/tokens/number_type.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dtrain/data/text.h"

namespace dtrain::data {
namespace {

constexpr NumberType kTypes[] = {{1, false}, {2, false}, {4, false}, {8, false},
                                 {1, true},  {2, true},  {4, true},  {8, true}};

template <typename Number>
std::vector<std::int64_t> widened(std::span<const std::byte> bytes) {
  const std::vector<Number> numbers = numbers_in<Number>(bytes);
  std::vector<std::int64_t> all;
  all.reserve(numbers.size());
  for (const Number number : numbers) all.push_back(static_cast<std::int64_t>(number));
  return all;
}

}  // namespace

std::string name_of(NumberType type) {
  return fmt::format("{}int{}", type.is_signed ? "" : "u", 8 * type.bytes);
}

std::optional<NumberType> number_type_named(std::string_view name) {
  for (const NumberType type : kTypes) {
    if (name_of(type) == name) return type;
  }
  return std::nullopt;
}

std::string number_type_names() {
  std::vector<std::string> names;
  for (const NumberType type : kTypes) names.push_back(name_of(type));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::int64_t> numbers_of(std::span<const std::byte> bytes, NumberType type) {
  switch (type.bytes) {
    case 1:
      return type.is_signed ? widened<std::int8_t>(bytes) : widened<std::uint8_t>(bytes);
    case 2:
      return type.is_signed ? widened<std::int16_t>(bytes) : widened<std::uint16_t>(bytes);
    case 4:
      return type.is_signed ? widened<std::int32_t>(bytes) : widened<std::uint32_t>(bytes);
    default:
      return numbers_in<std::int64_t>(bytes);
  }
}

std::string text_of(std::int64_t number, NumberType type) {
  return type.is_signed ? std::to_string(number)
                        : std::to_string(static_cast<std::uint64_t>(number));
}

}  // namespace dtrain::data
