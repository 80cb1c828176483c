#include "dtrain/runtime.h"

#include <ATen/Parallel.h>

#include <string_view>

#include "dtrain/base/log.h"
#include "dtrain/config/json.h"
#include "dtrain/metrics/cpu_memory.h"
#include "dtrain/train/commands.h"

namespace dtrain {
namespace {

void run(std::string_view text) {
  const config::Request request = config::from_request(text);
  metrics::install_counting_allocator();
  at::set_num_threads(static_cast<int>(request.config.machine.threads));
  switch (request.command) {
    case config::Command::train:
      train::train(request.config);
      break;
    default:
      break;
  }
}

}  // namespace
}  // namespace dtrain

int dtrain_run(const char* resolved_config) {
  try {
    dtrain::run(resolved_config);
    return 0;
  } catch (...) {
    return dtrain::base::report_current_exception();
  }
}
