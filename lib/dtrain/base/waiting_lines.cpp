#include "dtrain/base/waiting_lines.h"

#include <fmt/format.h>

#include "dtrain/base/log.h"
#include "dtrain/base/text.h"

namespace dtrain::base {

void WaitingLines::show(const std::function<std::string()>& whom) {
  if (!times_.take()) return;
  const std::string advice = std::exchange(advice_, "");
  log_info("waiting for {}, {} of {} (--comm-timeout){}{}", whom(), readable_time(times_.waited()),
           readable_time(Seconds(limit_).count()), advice.empty() ? "" : "; ", advice);
}

}  // namespace dtrain::base
