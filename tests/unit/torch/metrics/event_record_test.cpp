#include <array>
#include <catch2/catch.hpp>

#include "dtrain/metrics/event_file.h"

namespace dtrain::metrics::event_record_test {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[byte & 0xF];
  }
  return text;
}

TEST_CASE("CRC-32C has the values of RFC 3720") {
  CHECK(crc32c("123456789") == 0xE3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AA);
  CHECK(crc32c(std::string(32, '\xFF')) == 0x62A8AB43);
  CHECK(crc32c("") == 0);
}

// Encoded by Python's tensorboard 2.21 (EventFileWriter's RecordWriter).
TEST_CASE("A record has the bytes that TensorBoard's own writer gives it") {
  const EventTime at{.wall_seconds = 1.5, .step = 300};
  CHECK(hex(scalars_record(at, std::array{Scalar{"train/loss", 2.5}})) ==
        "2100000000000000017becf609000000000000f83f10ac022a130a110a0a747261696e2f6c6f7373"
        "1500002040b4ca3a3b");
  CHECK(hex(start_record(at)) ==
        "100000000000000095fbfe1809000000000000f83f10ac023a020801713b788a");
  CHECK(hex(text_record(at, "start", "a\nb")) ==
        "300000000000000095f5d05f09000000000000f83f10ac022a220a200a057374617274420d080712"
        "04120208014203610a624a080a060a04746578747aa09b39");
  CHECK(hex(version_record(1.5)) ==
        "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
}

}  // namespace
}  // namespace dtrain::metrics::event_record_test
