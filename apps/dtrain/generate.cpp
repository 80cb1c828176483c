#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "commands.h"
#include "configure.h"
#include "dtrain/base/error.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/checkpoint/store/locate.h"
#include "dtrain/checkpoint/store/names.h"
#include "open_for.h"
#include "runtime_library.h"

namespace dtrain::app {
namespace {

namespace fs = std::filesystem;
namespace store = checkpoint::store;
using base::ErrorKind;
using base::fail;
using base::is_folder;
using base::is_there;

// The file that --from means: itself, or the final model of a run folder.
std::string model_file_of(const std::string& from) {
  if (!is_there(from)) {
    fail(ErrorKind::checkpoint,
         "--from {}: nothing of this name exists; give a run folder, or a model file "
         "(RUN/final/model.safetensors)",
         from);
  }
  const fs::path folder = fs::path(from).parent_path();
  if (!is_folder(from)) {
    if (!is_there(folder / store::kManifestName)) return from;
    fail(ErrorKind::checkpoint,
         "--from {}: it is a file of the checkpoint {}, not a model file; make one of it: dtrain "
         "checkpoint export {} FILE.safetensors",
         from, folder.string(), folder.string());
  }
  const fs::path own = fs::path(from) / "model.safetensors";  // --from RUN/final
  const bool is_checkpoint = is_there(fs::path(from) / store::kManifestName);
  if (!is_checkpoint && is_there(own)) return own.string();
  if (!is_checkpoint && is_there(store::final_model(from))) return store::final_model(from);
  const std::string checkpoint = store::checkpoints_at(from).front();  // refuses other folders
  fail(ErrorKind::checkpoint,
       "--from {}: {}; make a model file of {}: dtrain checkpoint export {} FILE.safetensors", from,
       is_checkpoint ? "it is a checkpoint, not a model file"
                     : "the run has no final model yet, but checkpoints",
       is_checkpoint ? "it" : "the newest", checkpoint);
}

// A pipe is left alone: what opens it takes its bytes.
void check_prompt_file(const std::string& path) {
  if (path.empty() || path == "-") return;
  if (is_folder(path)) {
    fail(ErrorKind::data, "--prompt-file {}: it is a directory", path);
  }
  if (::access(path.c_str(), R_OK) != 0) {
    fail(ErrorKind::data, "--prompt-file {}: {}", path, std::strerror(errno));
  }
}

}  // namespace

int run_generate(const Arguments& arguments) {
  const auto configured = configure(config::Command::generate, arguments);
  if (!configured) return 0;
  config::Config config = configured->config;
  if (config.generate.from.empty()) {
    fail(ErrorKind::usage, "--from is missing: name a run folder or a model.safetensors");
  }
  config.generate.from = model_file_of(config.generate.from);
  // Refuses what is no model file.
  open_for("--from",
           [&] { (void)checkpoint::format::SafetensorsFile::open(config.generate.from); });
  check_prompt_file(config.generate.prompt_file);
  warn(config::Command::generate, *configured);
  return RuntimeLibrary::open().run({config::Command::generate, config});
}

}  // namespace dtrain::app
