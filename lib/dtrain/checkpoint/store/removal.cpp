#include "dtrain/checkpoint/store/removal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <system_error>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/input_file.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/checkpoint/format/safetensors.h"
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
  const int result = base::retry_transient(path, [&] {
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

// Returns whether the file is a data file, KIND-RRRRR-of-WWWWW[-partP].safetensors, or the
// manifest, also under its name in base::write_with_retries.
bool is_ours(const std::string& folder, const std::string& name) {
  static const std::regex kNames(R"(.+-[0-9]+-of-[0-9]+(-part[0-9]+)?\.safetensors)"
                                 R"(|(again[0-9]+-)?manifest\.json)");
  return std::regex_match(name, kNames) && fs::is_regular_file(status_of(folder + "/" + name));
}

bool has_marker(const std::string& manifest) {
  if (!fs::is_regular_file(status_of(manifest))) return false;
  std::error_code error;
  if (fs::file_size(manifest, error) < kMarker.size() || error) return false;
  std::array<char, kMarker.size()> begin{};
  base::InputFile::open(manifest, kManifestFile).read(0, std::as_writable_bytes(std::span(begin)));
  return std::string_view(begin.data(), begin.size()) == kMarker;
}

// Takes the folder's names as listed by the caller, so that the files examined are those removed.
std::string reason_to_keep(const std::string& folder, FolderKind kind,
                           const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!is_ours(folder, name)) {
      return fmt::format("'{}' holds '{}', which dtrain did not write", folder, name);
    }
  }
  if (kind == FolderKind::checkpoint && !has_marker(fmt::format("{}/{}", folder, kManifestName))) {
    return fmt::format("'{}' has no {} written by dtrain", folder, kManifestName);
  }
  return {};
}

std::string reason_not_a_folder(const std::string& path, const fs::file_status& status) {
  if (fs::is_symlink(status)) return fmt::format("'{}' is a link", path);
  if (!fs::is_directory(status)) return fmt::format("'{}' is not a folder", path);
  return {};
}

constexpr base::FileRole kRunFile{ErrorKind::usage, "file", "check its permissions"};

// Reads the first MiB of a file.
std::string beginning_of(const std::string& path) {
  const base::InputFile file = base::InputFile::open(path, kRunFile);
  std::string text(static_cast<std::size_t>(std::min(file.size(), std::int64_t{1} << 20)), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

// Recognises config.json by settings that every version writes.
bool is_our_config(const std::string& path) {
  using Json = nlohmann::json;
  const Json config = Json::parse(beginning_of(path), nullptr, /*allow_exceptions=*/false);
  constexpr std::array kMarks{"/train/steps", "/layout/strategy", "/run/dir"};
  const auto has = [&](const char* key) { return config.contains(Json::json_pointer(key)); };
  const bool has_layers = has("/model/layers") || has("/model/levels");  // of older builds
  return has_layers && std::ranges::all_of(kMarks, has);
}

// Looks for the line of a start, or of a step in case a crash of the machine damaged the first
// lines.
bool is_our_metrics(const std::string& path) {
  std::istringstream lines(beginning_of(path));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(R"({"event":"start","parameters":)")) return true;
    if (line.starts_with(R"({"step":)") && line.find(R"("wait_seconds":)") != line.npos)
      return true;
  }
  return false;
}

bool is_our_model(const std::string& path) {
  try {
    return format::SafetensorsFile::open(path).metadata().contains(kModelKey);
  } catch (const base::StorageError&) {
    throw;
  } catch (const base::Error&) {
    return false;  // another format
  }
}

// Why the file at `path` must stay; empty: it may be replaced.
std::string reason_to_keep_file(const std::string& path, bool (*is_ours)(const std::string&)) {
  std::error_code error;
  const fs::file_status status = base::link_status(path);
  if (!fs::exists(status)) return {};
  if (fs::is_symlink(status)) return "is a link";
  if (!fs::is_regular_file(status)) return "is not a regular file";
  if (fs::file_size(path, error) == 0 && !error) return {};
  return is_ours(path) ? "" : "was not written by dtrain";
}

}  // namespace

std::string reason_to_keep(const std::string& folder, FolderKind kind) {
  std::string why = reason_not_a_folder(folder, status_of(folder));
  return why.empty() ? reason_to_keep(folder, kind, all_names_in(folder)) : why;
}

void remove_folder_and_files(base::FileSystem& files, const std::string& folder) {
  const fs::file_status status = status_of(folder);
  if (!fs::exists(status)) return;
  std::string why = reason_not_a_folder(folder, status);
  std::vector<std::string> names;
  if (why.empty()) {
    names = all_names_in(folder);
    why = reason_to_keep(folder, FolderKind::unfinished, names);
  }
  if (!why.empty()) base::fail(ErrorKind::checkpoint, "{}", why);
  for (const std::string& name : names) files.remove_file(folder + "/" + name);
  files.remove_folder(folder);
}

void check_run_files(const std::string& run_dir, std::string_view flag) {
  struct File {
    std::string path;
    bool (*is_ours)(const std::string&);
  };
  const std::array<File, 3> files{{{run_dir + "/config.json", is_our_config},
                                   {run_dir + "/metrics.jsonl", is_our_metrics},
                                   {final_model(run_dir), is_our_model}}};
  for (const File& file : files) {
    const std::string why = reason_to_keep_file(file.path, file.is_ours);
    if (why.empty()) continue;
    base::fail(ErrorKind::usage,
               "--run-dir {}: '{}' {}, and {} would replace it; move it away, or give another "
               "folder",
               run_dir, file.path, why, flag);
  }
}

}  // namespace dtrain::checkpoint::store
