#include "commands.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dtrain/base/error.h"
#include "dtrain/base/nearest.h"
#include "help.h"

namespace dtrain::app {
namespace {

struct Subcommand {
  std::string_view name;
  int (*run)(const Arguments&);
};

constexpr Subcommand kSubcommands[] = {{"train", run_train},           {"data", run_data},
                                       {"generate", run_generate},     {"verify", run_verify},
                                       {"checkpoint", run_checkpoint}, {"schedule", run_schedule},
                                       {"settings", run_settings}};

int run_named(const std::string& name, const Arguments& arguments) {
  std::vector<std::string_view> names;
  for (const Subcommand& subcommand : kSubcommands) {
    if (subcommand.name == name) return subcommand.run(arguments);
    names.push_back(subcommand.name);
  }
  const std::string suggestion = base::did_you_mean(base::nearest(name, names));
  base::fail(base::ErrorKind::usage, "unknown subcommand \"{}\"{}", name,
             suggestion.empty() ? "; dtrain --help lists them" : suggestion);
}

}  // namespace

int run(const Arguments& arguments) {
  if (arguments.empty() || arguments[0].starts_with('-')) {
    if (!arguments.empty() && arguments[0] == "--version") {
      print("dtrain " DTRAIN_VERSION "\n");
      return 0;
    }
    if (!arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h")) {
      print(overview_help());
      return 0;
    }
    return run_train(arguments);
  }
  return run_named(arguments[0], {arguments.begin() + 1, arguments.end()});
}

void print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      base::fail(base::ErrorKind::usage, "cannot write to standard output: {}",
                 std::strerror(errno));
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace dtrain::app
