// dtrun: starts the ranks of a job on this machine and answers for their end.
#include <unistd.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/standard_streams.h"
#include "launcher/environment.h"
#include "launcher/guard.h"
#include "launcher/job.h"
#include "launcher/options.h"
#include "launcher/supervisor.h"

namespace {

using namespace launcher;

void write_text(int fd, std::string_view text) {
  [[maybe_unused]] const auto written = ::write(fd, text.data(), text.size());
}

/// Runs `action` and turns an exception into one line and an exit status.
template <typename Action>
int reported(Action&& action) {
  using dtrain::base::ErrorKind;
  int status = static_cast<int>(ErrorKind::internal);
  std::string message;
  try {
    return action();
  } catch (const dtrain::base::Error& error) {
    status = error.exit_status();
    message = error.what();
  } catch (const std::exception& error) {
    message = std::string("unexpected: ") + error.what();
  }
  write_text(STDERR_FILENO, "dtrun: error: " + message + "\n");
  return status;
}

int supervise(Job job, GuardLink guard) {
  const RunFolder folder = job.folder;
  const int status = reported([&] { return Supervisor(std::move(job), std::move(guard)).run(); });
  folder.remove_unless_kept();
  return status;
}

int run(const std::vector<std::string>& arguments) {
  Options options = parse_options(arguments);
  if (options.help) return write_text(STDOUT_FILENO, help_text()), 0;
  if (options.version) return write_text(STDOUT_FILENO, "dtrun " DTRAIN_VERSION "\n"), 0;
  std::string program_file = find_program(options.program.front());
  ReservedPort port = reserve_port(options.master_addr, options.master_port);
  RunFolder folder(options);
  const int status = run_guarded(
      Job{std::move(options), std::move(program_file), std::move(port), folder}, &supervise);
  folder.remove_unless_kept();  // again, for a supervisor that was killed
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  dtrain::base::secure_standard_streams();
  dtrain::base::survive_file_size_limit();
  return reported([&] { return run({argv + 1, argv + argc}); });
}
