#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "commands.h"
#include "configure.h"
#include "dtrain/base/error.h"
#include "dtrain/base/path_kind.h"
#include "model_path.h"
#include "runtime_library.h"

namespace dtrain::app {
namespace {

using base::ErrorKind;
using base::fail;
using base::is_folder;

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

int run_generate(const config::CommandLine& command_line) {
  const auto configured = configure(command_line);
  if (!configured) return 0;
  config::Config config = configured->config;
  require_from(config.generate.from);
  config.generate.from = model_path(config.generate.from);
  refuse_other_files(config.generate.from);
  check_prompt_file(config.generate.prompt_file);
  warn(config::Command::generate, *configured);
  return RuntimeLibrary::open().run({config::Command::generate, config});
}

}  // namespace dtrain::app
