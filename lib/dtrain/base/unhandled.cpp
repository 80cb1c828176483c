#include "dtrain/base/unhandled.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "dtrain/base/log.h"

namespace dtrain::base {

namespace {

int report() {
  try {
    throw;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    // gloo's thread has no other way to tell that it cannot read what came.
    if (text.find("gloo/transport") == std::string_view::npos) return report_current_exception();
    return report_error(ErrorKind::comm,
                        fmt::format("gloo gave up: {}; who sent that is perhaps no rank of this "
                                    "job: use a network that strangers cannot reach, or --backend "
                                    "shm",
                                    text.substr(0, text.find('\n'))),
                        ErrorScope::own);
  } catch (...) {
    return report_current_exception();
  }
}

}  // namespace

void report_unhandled_exceptions() noexcept {
  std::set_terminate([] {
    if (!std::current_exception()) std::abort();
    ::_exit(report());
  });
}

}  // namespace dtrain::base
