// Temporary folders, and small helpers for tests that use files.
#pragma once

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/base/error.h"

namespace dtrain::testing {

/// A temporary folder for one test; the destructor removes it with its content.
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

  /// Creates the file's folders, writes the file and returns its path.
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

  /// Names of the entries directly in the folder, or in its subfolder `below`.
  [[nodiscard]] std::set<std::string> names(std::string_view below = "") const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_ / below)) {
      names.insert(entry.path().filename());
    }
    return names;
  }

  /// Number of entries directly in the folder.
  [[nodiscard]] std::ptrdiff_t count() const {
    return std::distance(std::filesystem::directory_iterator(path_), {});
  }

 private:
  std::filesystem::path path_;
};

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Returns `bytes` with one bit flipped.
[[nodiscard]] inline std::string flipped(std::string bytes, std::size_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  return bytes;
}

/// Returns the message of the Error that f() throws; checks its kind and that it is one line.
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
