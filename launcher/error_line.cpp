#include "launcher/error_line.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>

#include "dtrain/base/clock.h"
#include "dtrain/base/descriptor.h"
#include "dtrain/base/error.h"
#include "launcher/output_writer.h"

namespace launcher {

void write_error_for_a_while(const std::string& text) {
  constexpr auto kLimit = std::chrono::seconds(1);
  try {
    const dtrain::base::Descriptor wake(::eventfd(0, EFD_CLOEXEC));
    OutputWriter writer(STDERR_FILENO, wake.get());
    writer.write(text);
    const auto start = dtrain::base::Clock::now();
    while (writer.waiting() > 0 && dtrain::base::Clock::now() - start < kLimit) ::usleep(1000);
  } catch (const dtrain::base::Error&) {  // no thread can be made
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  }
}

}  // namespace launcher
