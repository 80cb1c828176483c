// dtrun: starts the ranks of a job on this machine, supervises them and reports how they ended.
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/open_files.h"
#include "dtrain/base/print.h"
#include "dtrain/base/process.h"
#include "launcher/environment.h"
#include "launcher/guard.h"
#include "launcher/job.h"
#include "launcher/options.h"
#include "launcher/output_writer.h"
#include "launcher/supervisor.h"

namespace {

using namespace launcher;

void write_text(int fd, std::string_view text) {
  [[maybe_unused]] const auto written = ::write(fd, text.data(), text.size());
}

int print_and_end(std::string_view text) {
  dtrain::base::print(text);
  return 0;
}

/// Runs `action`; on an exception, `tell` prints it as one line, and an exit status is returned.
template <typename Action, typename Tell>
int reported(Action&& action, Tell&& tell) {
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
  tell("dtrun: error: " + dtrain::base::with_open_file_limit(std::move(message)) + "\n");
  return status;
}

/// A terminal that nobody reads must not keep the supervisor.
void write_error_for_a_while(const std::string& text) {
  constexpr auto kLimit = std::chrono::seconds(1);
  try {
    const dtrain::base::Descriptor wake(::eventfd(0, EFD_CLOEXEC));
    OutputWriter writer(STDERR_FILENO, wake.get());
    writer.write(text);
    const auto start = dtrain::base::Clock::now();
    while (writer.waiting() > 0 && dtrain::base::Clock::now() - start < kLimit) ::usleep(1000);
  } catch (const dtrain::base::Error&) {  // no thread can be made
    write_text(STDERR_FILENO, text);
  }
}

int supervise(PreparedJob job, GuardLink guard) {
  const LogFolder folder = job.folder;
  const int status = reported([&] { return Supervisor(std::move(job), std::move(guard)).run(); },
                              write_error_for_a_while);
  folder.remove_unless_kept();
  return status;
}

/// Says what it binds.
CpuBinding bind_ranks(const Options& options) {
  if (options.bind == Bind::none) return {};
  const std::vector<Cpu> cpus = read_topology(dtrain::base::affinity_mask());
  CpuBinding binding = launcher::bind_ranks(options.bind, cpus, options.num_ranks);
  write_text(STDERR_FILENO, "dtrun: " + describe(options.bind, binding) + "\n");
  return binding;
}

int run(const std::vector<std::string>& arguments) {
  rlimit open_files{};
  ::getrlimit(RLIMIT_NOFILE, &open_files);
  dtrain::base::raise_open_file_limit();
  Options options = parse_options(arguments);
  if (options.help) return print_and_end(help_text());
  if (options.version) return print_and_end("dtrun " DTRAIN_VERSION "\n");
  std::string program_file = find_program(options.program.front());
  ReservedPort port = reserve_port(options.master_addr, options.master_port);
  Door door = make_door();
  CpuBinding binding = bind_ranks(options);
  LogFolder folder(options);
  const int status = run_guarded(PreparedJob{.options = std::move(options),
                                             .program_file = std::move(program_file),
                                             .port = std::move(port),
                                             .door = std::move(door),
                                             .folder = folder,
                                             .binding = std::move(binding),
                                             .open_files = open_files},
                                 &supervise);
  folder.remove_unless_kept();  // again, for a supervisor that was killed
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  dtrain::base::secure_standard_streams();
  dtrain::base::survive_file_size_limit();
  return reported(
      [&] {
        return run({argv + 1, argv + argc});
      },
      [](const std::string& text) { write_text(STDERR_FILENO, text); });
}
