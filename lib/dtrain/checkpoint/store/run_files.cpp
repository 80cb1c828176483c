#include "dtrain/checkpoint/store/run_files.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/input_file.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/base/storage_error.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/checkpoint/store/locate.h"

namespace dtrain::checkpoint::store {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;

constexpr base::FileRole kRunFile{ErrorKind::usage, "file", "check its permissions"};
constexpr std::int64_t kMostRead = std::int64_t{1} << 20;  // bytes in which marks are looked for

std::string beginning_of(const std::string& path) {
  const base::InputFile file = base::InputFile::open(path, kRunFile);
  std::string text(static_cast<std::size_t>(std::min(file.size(), kMostRead)), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

// Every start writes all settings of a run, in their groups.
bool is_our_config(const std::string& path) {
  const auto config =
      nlohmann::json::parse(beginning_of(path), nullptr, /*allow_exceptions=*/false);
  struct Mark {
    const char* group;
    const char* setting;
  };
  constexpr std::array<Mark, 4> kMarks{
      {{"model", "levels"}, {"train", "steps"}, {"layout", "strategy"}, {"run", "dir"}}};
  return config.is_object() && std::ranges::all_of(kMarks, [&](const Mark& mark) {
           const auto group = config.find(mark.group);
           return group != config.end() && group->is_object() && group->contains(mark.setting);
         });
}

// The line of a start, or of a step if a crash of the machine has spoilt the first lines.
bool is_our_line(std::string_view line) {
  return line.starts_with(R"({"event":"start","parameters":)") ||
         (line.starts_with(R"({"step":)") &&
          line.find(R"("wait_seconds":)") != std::string_view::npos);
}

bool is_our_metrics(const std::string& path) {
  const std::string text = beginning_of(path);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    if (is_our_line(line)) return true;
    begin = end + 1;
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
std::string why_file_kept(const std::string& path, bool (*is_ours)(const std::string&)) {
  std::error_code error;
  const fs::file_status status = base::link_status(path);
  if (!fs::exists(status)) return {};
  if (fs::is_symlink(status)) return "is a link";
  if (!fs::is_regular_file(status)) return "is no regular file";
  if (fs::file_size(path, error) == 0 && !error) return {};
  return is_ours(path) ? "" : "was not written by dtrain";
}

}  // namespace

void check_run_files(const std::string& run_dir, std::string_view flag) {
  struct File {
    std::string path;
    bool (*is_ours)(const std::string&);
  };
  const std::array<File, 3> files{{{run_dir + "/config.json", is_our_config},
                                   {run_dir + "/metrics.jsonl", is_our_metrics},
                                   {final_model(run_dir), is_our_model}}};
  for (const File& file : files) {
    const std::string why = why_file_kept(file.path, file.is_ours);
    if (why.empty()) continue;
    base::fail(ErrorKind::usage,
               "--run-dir {}: '{}' {}, and {} would replace it: move it away, or name another "
               "folder",
               run_dir, file.path, why, flag);
  }
}

}  // namespace dtrain::checkpoint::store
