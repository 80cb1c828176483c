#include "dtrain/base/error.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "dtrain/base/index.h"
#include "dtrain/base/log.h"
#include "support/temp_folder.h"

namespace dtrain::base::error_test {
namespace {

using PageId = Index<struct PageTag>;
using LineId = Index<struct LineTag>;
using Pages = IndexedVector<PageId, std::string>;

TEST_CASE("An error carries its message and the exit status of its kind") {
  try {
    fail(ErrorKind::data, "file {} holds {} tokens", "x", 3);
    FAIL("fail returned");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "file x holds 3 tokens");
    CHECK(error.exit_status() == 3);
    CHECK(name_of(error.kind()) == "data");
  }
}

TEST_CASE("Exit statuses are the documented ones") {
  CHECK(static_cast<int>(ErrorKind::usage) == 2);
  CHECK(static_cast<int>(ErrorKind::comm) == 4);
  CHECK(static_cast<int>(ErrorKind::timeout) == 5);
  CHECK(static_cast<int>(ErrorKind::checkpoint) == 6);
  CHECK(static_cast<int>(ErrorKind::numerics) == 7);
  CHECK(static_cast<int>(ErrorKind::memory) == 8);
  CHECK(static_cast<int>(ErrorKind::interrupted) == 9);
  CHECK(static_cast<int>(ErrorKind::internal) == 70);
}

TEST_CASE("A failed check names its condition, place and values") {
  const int width = 3;
  CHECK_NOTHROW([&] { DTRAIN_CHECK(width == 3); }());
  CHECK_THROWS_WITH([&] { DTRAIN_CHECK(width == 4, "width {}", width); }(),
                    Catch::Contains("width == 4") && Catch::Contains("error_test.cpp") &&
                        Catch::Contains("width 3"));
}

TEST_CASE("Divisions with a remainder are rejected") {
  CHECK(div_exact(12, 4) == 3);
  CHECK_THROWS_AS(div_exact(13, 4), Error);
  CHECK_THROWS_AS(div_exact(1, 0), Error);
}

TEST_CASE("Conversions that change the value are rejected") {
  CHECK(narrow<std::uint8_t>(255) == 255);
  CHECK_THROWS_AS(narrow<std::uint8_t>(256), Error);
  CHECK_THROWS_AS(narrow<std::uint32_t>(-1), Error);
  CHECK_THROWS_AS(narrow<std::int32_t>(std::uint32_t{1} << 31), Error);
}

/// Sets TORCHELASTIC_ERROR_FILE for the duration of a test.
struct ErrorFile {
  ErrorFile() { ::setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1); }
  ~ErrorFile() { ::unsetenv("TORCHELASTIC_ERROR_FILE"); }
  dtrain::testing::TempFolder folder;
  std::string path = folder.path("error.json");
};

TEST_CASE("An error file has torchelastic's form") {
  CHECK(error_file_content("dtrain: error: \"a\\b\" is \xC3\xBC", 17) ==
        "{\"message\": {\"message\": \"dtrain: error: \\\"a\\\\b\\\" is ??\", \"extraInfo\": "
        "{\"py_callstack\": \"dtrain: error: \\\"a\\\\b\\\" is ??\", \"timestamp\": \"17\"}}}\n");
}

TEST_CASE("An error file is readable by its owner alone, and replaces an older one") {
  const ErrorFile named;
  std::ofstream(named.path) << std::string(5000, 'x');
  ::chmod(named.path.c_str(), 0644);
  write_error_file("why");
  CHECK(named.folder.read("error.json").starts_with("{\"message\": {\"message\": \"why\""));
  CHECK(named.folder.read("error.json").size() < 200);
  struct stat status {};
  REQUIRE(::stat(named.path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("Links, pipes and hard-linked files are not written to") {
  const ErrorFile named;
  const std::string other = named.folder.path("other");
  std::ofstream(other) << "precious";
  REQUIRE(::symlink(other.c_str(), named.path.c_str()) == 0);
  write_error_file("why");
  ::unlink(named.path.c_str());
  REQUIRE(::link(other.c_str(), named.path.c_str()) == 0);
  write_error_file("why");
  CHECK(named.folder.read("other") == "precious");
  ::unlink(named.path.c_str());
  REQUIRE(::mkfifo(named.path.c_str(), 0600) == 0);
  write_error_file("why");  // and it does not wait for a reader
}

TEST_CASE("Without the variable, or without its folder, nothing is written") {
  write_error_file("why");
  ::setenv("TORCHELASTIC_ERROR_FILE", "/nonexistent/error.json", 1);
  write_error_file("why");
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
}

template <typename Container, typename Id>
concept IndexedBy = requires(const Container& container, Id id) {
  container[id];
};

TEST_CASE("An id indexes containers of its own kind alone") {
  STATIC_REQUIRE(IndexedBy<Pages, PageId>);
  STATIC_REQUIRE_FALSE(IndexedBy<Pages, LineId>);
  STATIC_REQUIRE_FALSE(IndexedBy<Pages, std::int64_t>);
  STATIC_REQUIRE_FALSE(std::equality_comparable_with<PageId, LineId>);
  STATIC_REQUIRE_FALSE(std::convertible_to<std::int64_t, PageId>);
  STATIC_REQUIRE_FALSE(std::convertible_to<PageId, std::int64_t>);
}

TEST_CASE("Ids are counted and compared, like numbers") {
  PageId id;
  CHECK(++id == PageId(1));
  CHECK(--id < PageId(1));
  CHECK((PageId(7) + 2) - PageId(4) == 5);
  CHECK(PageId(7) - 2 == PageId(5));
}

TEST_CASE("A container hands out the ids of its elements") {
  Pages pages{"a", "b"};
  pages.push_back("c");
  std::string all;
  for (const PageId id : pages.ids()) all += pages[id];
  CHECK(all == "abc");
  CHECK(pages.end_id() == PageId(3));
  CHECK_THROWS_AS(pages[pages.end_id()], std::out_of_range);
  CHECK_THROWS_AS(pages[PageId(-1)], std::out_of_range);
}

TEST_CASE("A container holds move-only types, and bool") {
  IndexedVector<PageId, std::unique_ptr<int>> owners;
  owners.push_back(std::make_unique<int>(5));
  CHECK(*owners[PageId(0)] == 5);
  IndexedVector<PageId, bool> flags(2);
  flags[PageId(1)] = true;
  CHECK(flags == IndexedVector<PageId, bool>{false, true});
}

}  // namespace
}  // namespace dtrain::base::error_test
