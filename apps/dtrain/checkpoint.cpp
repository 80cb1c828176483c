#include "checkpoint.h"

#include <fmt/ranges.h>

#include "dtrain/base/error.h"
#include "dtrain/base/nearest.h"
#include "fitted_text.h"
#include "help.h"

namespace dtrain::app {
namespace {

struct Tool {
  std::string_view name;
  int (*run)(const Arguments&);
};

constexpr Tool kTools[] = {{"list", list_checkpoints},     {"inspect", inspect_checkpoint},
                           {"verify", verify_checkpoints}, {"diff", diff_checkpoints},
                           {"export", export_checkpoint},  {"import", import_checkpoint}};

}  // namespace

int run_checkpoint(const Arguments& arguments) {
  const std::string name = arguments.empty() ? "" : arguments[0];
  if (is_help(name)) {
    print_help(checkpoint_help());
    return 0;
  }
  std::vector<std::string_view> names;
  for (const Tool& tool : kTools) {
    if (tool.name == name) return tool.run({arguments.begin() + 1, arguments.end()});
    names.push_back(tool.name);
  }
  if (name.empty()) {
    base::fail(base::ErrorKind::usage,
               "dtrain checkpoint needs a tool: {}; dtrain checkpoint --help explains them",
               fmt::join(names, ", "));
  }
  const std::string suggestion =
      name == "ls" ? base::did_you_mean("list")
      : name == "rm" || name == "remove" || name == "delete"
          ? "; a checkpoint is removed as its folder is: rm -r RUN/checkpoints/step-N"
          : base::did_you_mean(base::nearest(name, names));
  base::fail(base::ErrorKind::usage, "dtrain checkpoint: found \"{}\", but it must be one of {}{}",
             name, fmt::join(names, ", "), suggestion);
}

}  // namespace dtrain::app
