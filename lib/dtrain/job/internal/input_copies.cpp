#include "dtrain/job/internal/input_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/io/input_file.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/data/tokenizer/stored_tokenizer.h"

namespace dtrain::job {
namespace {

namespace store = checkpoint::store;
using base::ErrorKind;

constexpr base::FileRole kInputFile{ErrorKind::usage, "file", "check its permissions"};

// The names of the files of the folder's tokenizer that are as the old run wrote them, if it is that
// of the old run's final model.
std::vector<std::string> old_tokenizer_files(const std::string& run_dir) {
  const std::string model = store::final_model(run_dir);
  if (!base::path_exists(model)) return {};
  try {
    const auto stored = data::tokenizer_in(run_dir);
    const auto file = checkpoint::format::SafetensorsFile::open(model);
    const auto found = file.metadata().find(store::kTokenizerKey);
    const bool is_old =
        stored && found != file.metadata().end() && found->second == data::identity_of(*stored);
    if (!is_old) return {};
    std::vector<std::string> names;
    for (const auto& [name, content] : data::files_of_tokenizer(stored->model)) {
      const std::string path = fmt::format("{}/{}", run_dir, name);
      if (base::path_exists(path) && base::content_of(path, kInputFile) == content) {
        names.push_back(name);
      }
    }
    return names;
  } catch (const base::Error&) {
    return {};  // an empty file
  }
}

}  // namespace

void check_tokenizer(const std::string& run_dir, std::string_view model, bool overwrite) {
  const auto wanted = data::files_of_tokenizer(model);
  if (wanted.empty()) return;
  const std::vector<std::string> replaced =
      overwrite ? old_tokenizer_files(run_dir) : std::vector<std::string>();
  for (const std::string_view name : data::kTokenizerFiles) {
    if (std::ranges::count(replaced, name) > 0) continue;
    // A tokenizer.model is found before a tokenizer.json.
    const bool is_alone = wanted.size() == 1;
    const std::string path = fmt::format("{}/{}", run_dir, name);
    if ((is_alone && name != wanted.front().first) || !base::path_exists(path)) continue;
    const std::string found = base::content_of(path, kInputFile);
    if (std::ranges::count(wanted, std::pair(std::string(name), found)) > 0) continue;
    base::fail(ErrorKind::usage,
               "'{}' is not of the tokenizer of the run's data, which the run would keep there; "
               "move it, or use another --run-dir",
               path);
  }
}

void keep_tokenizer(const std::string& run_dir, std::string_view model) {
  for (const auto& [name, content] : data::files_of_tokenizer(model)) {
    const std::string path = fmt::format("{}/{}", run_dir, name);
    if (!base::path_exists(path)) base::write_atomically(path, ErrorKind::checkpoint, content);
  }
}

void remove_old_tokenizer(base::Disk& disk, const std::string& run_dir) {
  for (const std::string& name : old_tokenizer_files(run_dir)) {
    disk.remove_file(fmt::format("{}/{}", run_dir, name));
  }
}

void replace_kept_files(base::Disk& disk, const std::string& run_dir,
                        const std::vector<store::KeptFile>& files) {
  const std::string folder = store::kept_files_folder(run_dir);
  if (files.empty() && !base::is_folder(folder)) return;
  disk.make_folder(folder);
  for (const std::string_view name : store::kKeptFiles) {
    const std::string path = fmt::format("{}/{}", folder, name);
    const store::KeptFile* const file = store::find_kept_file(files, name);
    if (file == nullptr) {
      disk.remove_file(path);
    } else if (!base::path_exists(path) || base::content_of(path, kInputFile) != file->content) {
      base::write_atomically(path, ErrorKind::checkpoint, file->content);
    }
  }
  std::error_code error;
  if (std::filesystem::is_empty(folder, error)) disk.remove_folder(folder);
}

void remove_temporary_copies(const std::string& run_dir) {
  for (const std::string_view name : data::kTokenizerFiles) {
    base::remove_temporaries_of(fmt::format("{}/{}", run_dir, name), ErrorKind::checkpoint);
  }
  const std::string kept = store::kept_files_folder(run_dir);
  if (!base::is_folder(kept)) return;
  for (const std::string_view name : store::kKeptFiles) {
    base::remove_temporaries_of(fmt::format("{}/{}", kept, name), ErrorKind::checkpoint);
  }
}

}  // namespace dtrain::job
