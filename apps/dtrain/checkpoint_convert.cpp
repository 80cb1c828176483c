// Tools that need the model: they check here what can be checked without LibTorch, and run there.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "commands.h"
#include "configure.h"
#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/checkpoint/store/locate.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/verify.h"
#include "runtime_library.h"

namespace dtrain::app {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;
using base::is_there;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// generate finds the tokenizer of a model file beside it; that of a run is in its folder.
void bring_tokenizer(const std::string& checkpoint, const std::string& file) {
  constexpr const char* kName = "tokenizer.model";
  std::error_code error;
  const fs::path run = fs::weakly_canonical(checkpoint, error).parent_path().parent_path();
  const fs::path from = run / kName;
  const fs::path to = fs::path(file).parent_path() / kName;
  if (!fs::is_regular_file(from, error) || fs::equivalent(from, to, error)) return;
  if (is_there(to.string())) {
    if (content_of(from) == content_of(to)) return;
    base::log_warning("{} is another one, and stays; generate needs a copy of {} beside {}",
                      to.string(), from.string(), file);
    return;
  }
  fs::copy_file(from, to, error);
  if (error) {
    fail(ErrorKind::checkpoint, "{}: cannot be written ({}); copy {} there: generate needs it",
         to.string(), error.message(), from.string());
  }
  base::log_info("also wrote {}, which generate needs beside the model", to.string());
}

}  // namespace

int export_checkpoint(const config::CommandLine& command_line) {
  constexpr auto kCommand = config::Command::export_checkpoint;
  const auto configured = configure(command_line);
  if (!configured) return 0;
  const config::ExportConfig& wanted = configured->config.exporting;
  if (wanted.checkpoint.empty() || wanted.file.empty()) {
    fail(ErrorKind::usage,
         "dtrain checkpoint export takes PATH FILE: a checkpoint, and the file to write");
  }
  if (is_there(wanted.file) && !wanted.overwrite) {
    fail(ErrorKind::usage, "'{}' exists: name another file, or give --overwrite to replace it",
         wanted.file);
  }
  if (std::error_code error; is_there(wanted.file) && !fs::is_regular_file(wanted.file, error)) {
    fail(ErrorKind::usage, "'{}' is not a regular file and is not replaced; name another file",
         wanted.file);
  }
  if (is_there((fs::path(wanted.file).parent_path() / checkpoint::store::kManifestName).string())) {
    fail(ErrorKind::usage, "'{}' lies in a checkpoint: name a file elsewhere", wanted.file);
  }
  const auto path = checkpoint::store::checkpoints_at(wanted.checkpoint).front();
  (void)checkpoint::store::read_manifest(path);  // refuses what is no checkpoint
  warn(kCommand, *configured);
  const int status = RuntimeLibrary::open().run({kCommand, configured->config});
  if (status == 0 && configured->env.rank == 0) bring_tokenizer(path, wanted.file);
  return status;
}

int import_checkpoint(const config::CommandLine& command_line) {
  constexpr auto kCommand = config::Command::import_checkpoint;
  const auto configured = configure(command_line);
  if (!configured) return 0;
  const config::ImportConfig& wanted = configured->config.importing;
  if (wanted.file.empty() || wanted.checkpoint.empty()) {
    fail(ErrorKind::usage,
         "dtrain checkpoint import takes FILE FOLDER: a model file, and the checkpoint to write");
  }
  if (is_there(wanted.checkpoint)) {
    fail(ErrorKind::usage, "'{}' exists: name another folder for the checkpoint",
         wanted.checkpoint);
  }
  (void)checkpoint::format::SafetensorsFile::open(wanted.file);  // refuses what is no model file
  warn(kCommand, *configured);
  return RuntimeLibrary::open().run({kCommand, configured->config});
}

}  // namespace dtrain::app
