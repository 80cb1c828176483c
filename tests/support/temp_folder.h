// Makes files for tests.
#pragma once

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "dtrain/base/error.h"

namespace dtrain::testing {

/// A folder of its own for one test, removed with all its content at the end.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "dtrain-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string path(std::string_view name) const { return (path_ / name).string(); }

  /// Writes a file, making its folders, and returns its path.
  std::string write(std::string_view name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary).write(content.data(), std::ssize(content));
    return file.string();
  }

  [[nodiscard]] std::string read(std::string_view name) const {
    std::ifstream stream(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  /// Number of entries directly in the folder.
  [[nodiscard]] std::ptrdiff_t count() const {
    return std::distance(std::filesystem::directory_iterator(path_), {});
  }

 private:
  std::filesystem::path path_;
};

/// The message of the Error that f() throws, after checking its kind and that it is one line.
template <typename F>
std::string message_of(base::ErrorKind kind, F f) {
  try {
    f();
  } catch (const base::Error& error) {
    INFO(error.what());
    CHECK(error.kind() == kind);
    CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
    return error.what();
  }
  FAIL("no Error was thrown");
  return {};
}

}  // namespace dtrain::testing
