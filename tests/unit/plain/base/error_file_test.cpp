#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "dtrain/base/log.h"
#include "support/temp_folder.h"

namespace error_file_test {
namespace {

using dtrain::base::error_file_content;
using dtrain::base::write_error_file;

/// The file that TORCHELASTIC_ERROR_FILE names for the time of a test.
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

TEST_CASE("An error file is its owner's alone, and replaces an older one") {
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

TEST_CASE("Neither links nor pipes nor files with a second name are written to") {
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

TEST_CASE("Without the variable, or a folder for the file, nothing happens") {
  write_error_file("why");
  ::setenv("TORCHELASTIC_ERROR_FILE", "/nonexistent/error.json", 1);
  write_error_file("why");
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
}

}  // namespace
}  // namespace error_file_test
