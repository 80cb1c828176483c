#include "dtrain/metrics/metrics_file.h"

#include <array>
#include <catch2/catch.hpp>

#include "dtrain/metrics/event_file.h"
#include "dtrain/metrics/format.h"
#include "support/temp_folder.h"

namespace dtrain::metrics::metrics_file_test {
namespace {

using testing::TempFolder;

std::string cut(const std::string& text, std::int64_t step) {
  const TempFolder folder;
  cut_back(folder.write("m", text), step);
  return folder.read("m");
}

TEST_CASE("Cutting back removes everything from the first line of a later step on") {
  const std::string kept = "{\"event\":\"start\"}\n{\"step\":1}\n{\"event\":\"eval\",\"step\":1}\n";
  CHECK(cut(kept + "{\"step\":2}\n{\"event\":\"checkpoint\",\"step\":1}\n", 1) == kept);
  CHECK(cut(kept, 1) == kept);
  CHECK(cut(kept, 0) == "{\"event\":\"start\"}\n");
  CHECK(cut("", 3).empty());
}

TEST_CASE("A truncated last line is removed, even if it parses") {
  CHECK(cut("{\"step\":1}\n{\"step\":2,\"lo", 5) == "{\"step\":1}\n");
  CHECK(cut("{\"step\":1}\n{\"step\":2}", 5) == "{\"step\":1}\n");
}

TEST_CASE("Cutting back a missing file is a no-op") {
  const TempFolder folder;
  cut_back(folder.path("none"), 3);
  CHECK(folder.count() == 0);
}

TEST_CASE("Lines wait for a full disk, up to a bounded backlog") {
  AppendedFile file("/dev/full", AppendedFile::Start::appended, "lines");
  CHECK_NOTHROW(file.write_line({{"step", 1}}));
  const std::string full = testing::message_of(base::ErrorKind::checkpoint, [&] {
    file.write_line({{"message", std::string(AppendedFile::kMaxBacklogBytes, 'x')}});
  });
  CHECK_THAT(full, Catch::Contains("/dev/full"));
}

TEST_CASE("Lines are appended to existing ones or to an empty file") {
  const TempFolder folder;
  folder.write("m", "{\"step\":1}\n");
  AppendedFile(folder.path("m"), AppendedFile::Start::appended, "lines").write_line({{"step", 2}});
  CHECK(folder.read("m") == "{\"step\":1}\n{\"step\":2}\n");
  AppendedFile(folder.path("m"), AppendedFile::Start::empty, "lines").write_line({{"step", 3}});
  CHECK(folder.read("m") == "{\"step\":3}\n");
}

TEST_CASE("A message that is not UTF-8 becomes a line") {
  const TempFolder folder;
  AppendedFile file(folder.path("m"), AppendedFile::Start::empty, "lines");
  file.write_line({{"message", "caf\xe9/x"}});
  CHECK(folder.read("m") == "{\"message\":\"caf\xef\xbf\xbd/x\"}\n");
}

TEST_CASE("Bytes are formatted in the unit with the fewest digits") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes(std::int64_t{5} << 30) == "5.0 GiB");
  CHECK(format_bytes(std::int64_t{5000} << 40) == "5000.0 TiB");
}

TEST_CASE("Counts, durations and rates are formatted for people") {
  CHECK(format_count(7) == "7");
  CHECK(format_count(425'984) == "425,984");
  CHECK(format_count(25'296'896) == "25,296,896");
  CHECK(format_duration(0.4) == "0:00");
  CHECK(format_duration(59.6) == "1:00");
  CHECK(format_duration(3723) == "1:02:03");
  CHECK(format_duration(-1) == "0:00");
  CHECK(format_rate(999) == "999");
  CHECK(format_rate(12'340) == "12.3k");
  CHECK(format_rate(1'234'567) == "1.23M");
}

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
TEST_CASE("A record has the bytes of TensorBoard's own writer") {
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
}  // namespace dtrain::metrics::metrics_file_test
