#include "dtrain/checkpoint/format/file_checksum.h"

#include <fmt/format.h>

#include <algorithm>

#include "dtrain/base/checksum.h"
#include "dtrain/base/error.h"

namespace dtrain::checkpoint::format {
namespace {

constexpr std::string_view kKind = "xxh3 ";
constexpr std::string_view kBlankDigits = kBlankChecksum.substr(kKind.size());

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Of a file whose checksum has `value`. Empty: the value is no checksum.
std::string computed_digits(std::span<const std::byte> bytes, const std::string& value) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t begin = find_checksum_digits(text, value);
  if (begin == text.npos || value.size() != kBlankChecksum.size()) return {};
  base::Checksum checksum;
  checksum.add(bytes.first(begin));
  checksum.add(bytes_of(kBlankDigits));
  checksum.add(bytes.subspan(begin + kBlankDigits.size()));
  return base::checksum_text(checksum.value());
}

}  // namespace

std::size_t find_checksum_digits(std::string_view header, std::string_view value) {
  const std::size_t quote = header.find(fmt::format("\"{}\"", value));
  return quote == header.npos ? quote : quote + 1 + kKind.size();
}

bool verify_checksum(const SafetensorsFile& file) {
  // The key, too, may be damaged.
  const auto found = std::ranges::find_if(file.metadata(), [](const auto& entry) {
    return entry.first == kChecksumKey || entry.second.starts_with(kKind);
  });
  if (found == file.metadata().end()) return false;
  const std::string& value = found->second;
  const std::string digits = computed_digits(file.bytes(), value);
  if (!digits.empty() && value == fmt::format("{}{}", kKind, digits)) return true;
  base::fail(base::ErrorKind::checkpoint,
             "model file '{}' is damaged: its checksum is {}, expected {}; take another copy, or "
             "export it again from a checkpoint",
             file.path(), digits, value);
}

}  // namespace dtrain::checkpoint::format
