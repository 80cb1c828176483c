#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/config/help.h"
#include "help.h"

namespace dtrain::app {

int run_settings(const Arguments& arguments) {
  if (!arguments.empty() && is_help(arguments[0])) {
    print(settings_help());
    return 0;
  }
  if (!arguments.empty()) {
    base::fail(base::ErrorKind::usage, "dtrain settings takes no arguments; found {}",
               arguments[0]);
  }
  print(config::settings_markdown());
  return 0;
}

}  // namespace dtrain::app
