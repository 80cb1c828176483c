#include "dtrain/base/printable.h"

namespace dtrain::base {

std::string printable(std::string_view text, std::size_t most_bytes) {
  std::string result;
  int continued = 0;  // bytes that the character under way still has in UTF-8
  for (std::size_t at = 0; at < text.size() && result.size() < most_bytes; ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto next = at + 1 < text.size() ? static_cast<unsigned char>(text[at + 1]) : 0U;
    const bool is_continuation = continued > 0 && (byte & 0xC0) == 0x80;
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F
      result += '?';
      ++at;
      continued = 0;
      continue;
    }
    const bool is_control = byte < 0x20 || byte == 0x7F || (byte >= 0x80 && byte < 0xA0);
    result += is_control && !is_continuation ? '?' : text[at];
    if (is_continuation) {
      --continued;
    } else {
      continued = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : byte >= 0xC0 ? 1 : 0;
    }
  }
  return result;
}

}  // namespace dtrain::base
