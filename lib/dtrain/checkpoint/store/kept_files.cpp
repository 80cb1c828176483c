#include "dtrain/checkpoint/store/kept_files.h"

#include <algorithm>
#include <filesystem>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/io/input_file.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/checkpoint/format/weight_file.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/config/hugging_face/config_file.h"

namespace dtrain::checkpoint::store {
namespace {

namespace fs = std::filesystem;

constexpr base::FileRole kKeptFile{base::ErrorKind::checkpoint, "file", "check its permissions"};

// Returns RUN if the file, with links resolved, is the final model of RUN; otherwise empty.
std::string run_of_final_model(const std::string& file) {
  const fs::path resolved = base::resolved_path(file);
  const std::string run = resolved.parent_path().parent_path().string();
  return resolved == final_model(run) ? run : std::string();
}

}  // namespace

std::string kept_files_folder(const std::string& run_dir) { return run_dir + "/init-from"; }

std::string companion_folder(const std::string& weights) {
  const bool is_checkpoint = base::is_folder(weights);
  if (!is_checkpoint && !format::WeightFile::open(weights).metadata().contains(kModelKey)) {
    std::string beside = base::parent_folder(weights);
    return config::hugging_face_model_in(beside) ? beside : std::string();
  }
  const std::string run = is_checkpoint ? run_of_checkpoint(weights) : run_of_final_model(weights);
  std::string copies = run.empty() ? run : kept_files_folder(run);
  return !copies.empty() && base::is_folder(copies) ? copies : std::string();
}

std::vector<KeptFile> read_kept_files(const std::string& folder) {
  std::vector<KeptFile> files;
  if (folder.empty()) return files;
  for (const std::string_view name : kKeptFiles) {
    const std::string path = (fs::path(folder) / name).string();
    if (!base::path_exists(path)) continue;
    files.push_back({.name = std::string(name), .content = base::content_of(path, kKeptFile)});
  }
  return files;
}

const KeptFile* find_kept_file(const std::vector<KeptFile>& files, std::string_view name) {
  const auto found = std::ranges::find(files, name, &KeptFile::name);
  return found == files.end() ? nullptr : &*found;
}

}  // namespace dtrain::checkpoint::store
