#include "dtrain/metrics/metrics_file.h"

#include <catch2/catch.hpp>

#include "support/temp_folder.h"

namespace dtrain::metrics::metrics_file_test {
namespace {

using testing::TempFolder;

std::string cut(const std::string& text, std::int64_t step) {
  const TempFolder folder;
  cut_back(folder.write("m", text), step);
  return folder.read("m");
}

TEST_CASE("Lines from the first of a later step on are cut") {
  const std::string kept = "{\"event\":\"start\"}\n{\"step\":1}\n{\"event\":\"eval\",\"step\":1}\n";
  CHECK(cut(kept + "{\"step\":2}\n{\"event\":\"checkpoint\",\"step\":1}\n", 1) == kept);
  CHECK(cut(kept, 1) == kept);
  CHECK(cut(kept, 0) == "{\"event\":\"start\"}\n");
  CHECK(cut("", 3).empty());
}

TEST_CASE("A last line that was cut short goes, even where it reads as a whole one") {
  CHECK(cut("{\"step\":1}\n{\"step\":2,\"lo", 5) == "{\"step\":1}\n");
  CHECK(cut("{\"step\":1}\n{\"step\":2}", 5) == "{\"step\":1}\n");
}

TEST_CASE("Without a file nothing is cut") {
  const TempFolder folder;
  cut_back(folder.path("none"), 3);
  CHECK(folder.count() == 0);
}

TEST_CASE("Lines wait while the disk is full, but not without end") {
  AppendedFile file("/dev/full", AppendedFile::Start::appended, "lines");
  CHECK_NOTHROW(file.write_line({{"step", 1}}));
  const std::string full = testing::message_of(base::ErrorKind::checkpoint, [&] {
    file.write_line({{"message", std::string(AppendedFile::kMaxWaitingBytes, 'x')}});
  });
  CHECK_THAT(full, Catch::Contains("/dev/full"));
}

TEST_CASE("Lines are appended to those that are there, or to none") {
  const TempFolder folder;
  folder.write("m", "{\"step\":1}\n");
  AppendedFile(folder.path("m"), AppendedFile::Start::appended, "lines").write_line({{"step", 2}});
  CHECK(folder.read("m") == "{\"step\":1}\n{\"step\":2}\n");
  AppendedFile(folder.path("m"), AppendedFile::Start::empty, "lines").write_line({{"step", 3}});
  CHECK(folder.read("m") == "{\"step\":3}\n");
}

}  // namespace
}  // namespace dtrain::metrics::metrics_file_test
