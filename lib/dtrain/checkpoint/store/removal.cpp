#include "dtrain/checkpoint/store/removal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/input_file.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/base/storage_error.h"
#include "dtrain/checkpoint/store/names.h"

namespace dtrain::checkpoint::store {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;

// Every manifest begins with its checksum.
constexpr std::string_view kMarker = R"({"xxh3": ")";
constexpr base::FileRole kManifestFile{ErrorKind::checkpoint, "checkpoint file", "check the disk"};

[[noreturn]] void fail_to_read(const std::string& path, const std::error_code& error) {
  base::fail_on_storage(ErrorKind::checkpoint, error.value(),
                        fmt::format("'{}' cannot be read: {}", path, error.message()));
}

fs::file_status status_of(const std::string& path) {
  std::error_code error;
  fs::file_status status;
  const int result = base::with_patience(path, [&] {
    status = fs::symlink_status(path, error);
    errno = error.value();
    return status.type() == fs::file_type::none ? -1 : 0;
  });
  if (result != 0) fail_to_read(path, error);
  return status;
}

std::vector<std::string> all_names_in(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names = base::names_in(folder, error);
  if (error) fail_to_read(folder, error);
  return names;
}

bool take_back(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

bool take_digits_back(std::string_view& text) {
  const auto size = text.size();
  while (!text.empty() && text.back() >= '0' && text.back() <= '9') text.remove_suffix(1);
  return text.size() < size;
}

// KIND-RRRRR-of-WWWWW[-partP].safetensors
bool is_data_file(std::string_view name) {
  if (!take_back(name, ".safetensors") || !take_digits_back(name)) return false;
  if (take_back(name, "-part") && !take_digits_back(name)) return false;
  return take_back(name, "-of-") && take_digits_back(name) && take_back(name, "-") && !name.empty();
}

// Also under the name that base::write_anew gives it.
bool is_manifest(std::string_view name) {
  if (!take_back(name, kManifestName)) return false;
  return name.empty() || (take_back(name, "-") && take_digits_back(name) && name == "again");
}

bool is_ours(const std::string& folder, const std::string& name) {
  return (is_manifest(name) || is_data_file(name)) &&
         fs::is_regular_file(status_of(folder + "/" + name));
}

bool has_marker(const std::string& manifest) {
  if (!fs::is_regular_file(status_of(manifest))) return false;
  std::error_code error;
  if (fs::file_size(manifest, error) < kMarker.size() || error) return false;
  std::array<char, kMarker.size()> begin{};
  base::InputFile::open(manifest, kManifestFile).read(0, std::as_writable_bytes(std::span(begin)));
  return std::string_view(begin.data(), begin.size()) == kMarker;
}

// Lists an existing folder once, so that the files removed are those examined.
std::string why_kept(const std::string& folder, FolderKind kind,
                     const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!is_ours(folder, name)) {
      return fmt::format("'{}' holds '{}', which dtrain did not write", folder, name);
    }
  }
  if (kind == FolderKind::checkpoint && !has_marker(fmt::format("{}/{}", folder, kManifestName))) {
    return fmt::format("'{}' has no {} of dtrain's", folder, kManifestName);
  }
  return {};
}

std::string why_no_folder(const std::string& path, const fs::file_status& status) {
  if (fs::is_symlink(status)) return fmt::format("'{}' is a link", path);
  if (!fs::is_directory(status)) return fmt::format("'{}' is not a folder", path);
  return {};
}

}  // namespace

std::string why_kept(const std::string& folder, FolderKind kind) {
  std::string why = why_no_folder(folder, status_of(folder));
  return why.empty() ? why_kept(folder, kind, all_names_in(folder)) : why;
}

void remove_folder_and_files(base::FileSystem& files, const std::string& folder) {
  const fs::file_status status = status_of(folder);
  if (!fs::exists(status)) return;
  std::string why = why_no_folder(folder, status);
  std::vector<std::string> names;
  if (why.empty()) {
    names = all_names_in(folder);
    why = why_kept(folder, FolderKind::unfinished, names);
  }
  if (!why.empty()) base::fail(ErrorKind::checkpoint, "{}", why);
  for (const std::string& name : names) files.remove_file(folder + "/" + name);
  files.remove_folder(folder);
}

}  // namespace dtrain::checkpoint::store
