#include "support/ranks/local_ranks.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <map>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/metrics/tensor_memory.h"

namespace dtrain::testing {

namespace {

// The hidden test case below, which a started process runs. Its parameters come from the
// environment.
constexpr const char* kRankCase = "A rank of another test";
constexpr const char* kVariable = "DTRAIN_TEST_RANK";
constexpr int kReportDescriptor = 3;
constexpr int kStoreDescriptor = 4;

std::map<std::string, RankBody>& programs() {
  static std::map<std::string, RankBody> all;
  return all;
}

/// The task of a started process, one item per line.
struct RankTask {
  std::string program;
  std::string backend;
  std::int64_t rank = 0;
  std::int64_t size = 0;
  std::int64_t timeout_ms = 0;
  std::int64_t fast = 0;
  std::string argument;

  [[nodiscard]] std::string packed() const {
    return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}", program, backend, rank, size, timeout_ms, fast,
                       argument);
  }
  static RankTask unpacked(const std::string& text) {
    std::vector<std::string> lines;
    std::size_t begin = 0;
    for (int i = 0; i < 6; ++i) {
      const auto end = text.find('\n', begin);
      lines.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return {lines[0],
            lines[1],
            std::stoll(lines[2]),
            std::stoll(lines[3]),
            std::stoll(lines[4]),
            std::stoll(lines[5]),
            text.substr(begin)};
  }
};

void write_all(int descriptor, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const auto count = ::write(descriptor, text.data() + done, text.size() - done);
    if (count <= 0) return;
    done += static_cast<std::size_t>(count);
  }
}

std::string run_task(const RankTask& task) {
  at::set_num_threads(1);
  comm::WorldOptions options;
  options.backend = task.backend;
  options.rank = task.rank;
  options.size = task.size;
  options.store.rendezvous_fd = kStoreDescriptor;
  options.group.timeout = std::chrono::milliseconds(task.timeout_ms);
  options.count_memory = metrics::count_other_memory;
  options.group.reduction = task.fast != 0 ? comm::Reduction::fast : comm::Reduction::ordered;
  const auto world = comm::create_world(options);
  return programs().at(task.program)(*world, task.argument);
}

[[noreturn]] void run_as_rank(const std::string& packed) {
  ::fcntl(kReportDescriptor, F_SETFD, FD_CLOEXEC);
  int status = 0;
  std::string text;
  try {
    text = run_task(RankTask::unpacked(packed));
  } catch (const base::Error& error) {
    status = error.exit_status();
    text = fmt::format("{} {}", base::name_of(error.kind()), error.what());
  } catch (const std::exception& error) {
    status = 70;
    text = fmt::format("unexpected {}", error.what());
  }
  write_all(kReportDescriptor, "=" + text);
  ::_exit(status);  // exits without Catch's report, since this is a rank, not a test
}

/// Both ends of a rendezvous socket, as dtrun passes them on: rank 0's, and the other ranks'.
std::array<int, 2> make_door() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw std::runtime_error("no socket pair");
  }
  return ends;
}

}  // namespace

TEST_CASE(kRankCase, "[.rank]") {
  if (const char* task = std::getenv(kVariable)) run_as_rank(task);
}

std::shared_ptr<comm::ProcessGroup> group_of_all(comm::World& world) {
  return world.split(comm::ranks_below(world.size()), "world");
}

void on_threads(std::int64_t size, const std::function<void(comm::World&)>& body,
                const comm::GroupOptions& options) {
  comm::run_local_ranks(size, options, [&](const std::shared_ptr<comm::World>& world) {
    at::set_num_threads(1);  // ranks share the machine
    body(*world);
  });
}

std::string RankOutcome::errors() const {
  std::istringstream lines(standard_error);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("dtrain: waiting for ")) kept += line + "\n";
  }
  return kept;
}

RankProgram::RankProgram(const std::string& name, RankBody body) {
  const bool is_new = programs().emplace(name, std::move(body)).second;
  if (!is_new) throw std::logic_error("two programs of ranks are named " + name);
}

void print_progress(const std::string& line) { write_all(kReportDescriptor, line + "\n"); }

struct RankProcesses::Process {
  pid_t pid = -1;  // -1: not started, or reaped
  int report = -1;
  int errors = -1;
  std::string report_text;
  base::Clock::time_point start = base::Clock::now();
  RankOutcome outcome;

  ~Process() {
    if (pid > 0) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    for (const int descriptor : {report, errors}) {
      if (descriptor >= 0) ::close(descriptor);
    }
  }

  void start_task(const RankTask& task, int store) {
    int report_pipe[2];
    int error_pipe[2];
    if (::pipe2(report_pipe, O_CLOEXEC) != 0 || ::pipe2(error_pipe, O_CLOEXEC) != 0) {
      throw std::runtime_error("no pipe");
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // Duplicated above the target descriptors, so that none overwrites another.
    const int high_report = ::fcntl(report_pipe[1], F_DUPFD_CLOEXEC, 100);
    const int high_store = ::fcntl(store, F_DUPFD_CLOEXEC, 100);
    posix_spawn_file_actions_adddup2(&actions, error_pipe[1], STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&actions, high_report, kReportDescriptor);
    posix_spawn_file_actions_adddup2(&actions, high_store, kStoreDescriptor);
    const std::string variable = fmt::format("{}={}", kVariable, task.packed());
    std::vector<char*> environment{const_cast<char*>(variable.c_str())};
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.push_back(nullptr);
    char program[] = "/proc/self/exe";
    char* arguments[] = {program, const_cast<char*>(kRankCase), nullptr};
    const int error =
        ::posix_spawn(&pid, program, &actions, nullptr, arguments, environment.data());
    posix_spawn_file_actions_destroy(&actions);
    for (const int done : {report_pipe[1], error_pipe[1], high_report, high_store}) ::close(done);
    report = report_pipe[0];
    errors = error_pipe[0];
    if (error != 0) throw std::runtime_error("cannot start a rank");
  }

  static void read_some(int& descriptor, std::string& text) {
    char buffer[4096];
    const auto count = ::read(descriptor, buffer, sizeof buffer);
    if (count > 0) {
      text.append(buffer, static_cast<std::size_t>(count));
    } else {
      ::close(descriptor);
      descriptor = -1;
    }
  }

  /// Reads available output; false once both pipes are closed.
  bool read_output(int patience_ms) {
    pollfd waiting[2] = {{report, POLLIN, 0}, {errors, POLLIN, 0}};  // negative ones are ignored
    if (report < 0 && errors < 0) return false;
    ::poll(waiting, 2, patience_ms);
    if (waiting[0].revents != 0) read_some(report, report_text);
    if (waiting[1].revents != 0) read_some(errors, outcome.standard_error);
    return true;
  }

  void reap() {
    int status = 0;
    ::waitpid(pid, &status, 0);
    pid = -1;
    outcome.seconds = base::seconds_since(start);
    outcome.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    const auto begin = report_text.find('=');
    if (begin != std::string::npos) outcome.text = report_text.substr(begin + 1);
  }
};

RankProcesses::RankProcesses(const std::string& program, const ProcessOptions& options)
    : limit_(options.limit) {
  const std::array<int, 2> door = make_door();
  for (std::int64_t rank = 0; rank < options.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    processes_.push_back(std::make_unique<Process>());
    if (std::count(options.absent.begin(), options.absent.end(), rank) != 0) continue;
    RankTask task{.program = program,
                  .backend = options.backend,
                  .rank = rank,
                  .size = options.world_sizes.empty() ? options.size : options.world_sizes[index],
                  .timeout_ms = options.group.timeout.count(),
                  .fast = options.group.reduction == comm::Reduction::fast ? 1 : 0,
                  .argument = options.argument};
    processes_.back()->start_task(task, door[rank == 0 ? 0 : 1]);
  }
  for (const int end : door) ::close(end);
}

RankProcesses::~RankProcesses() = default;

void RankProcesses::signal(std::int64_t rank, int number) {
  ::kill(processes_[static_cast<std::size_t>(rank)]->pid, number);
}

std::string RankProcesses::next_line(std::int64_t rank) {
  Process& process = *processes_[static_cast<std::size_t>(rank)];
  const auto start = base::Clock::now();
  while (process.report_text.find('\n') == std::string::npos) {
    if (!process.read_output(100) || base::Clock::now() - start > limit_) {
      throw std::runtime_error("the rank ended without a line: " + process.report_text + " " +
                               process.outcome.standard_error);
    }
  }
  const auto end = process.report_text.find('\n');
  const std::string line = process.report_text.substr(0, end);
  process.report_text.erase(0, end + 1);
  return line;
}

std::vector<RankOutcome> RankProcesses::wait() {
  const auto start = base::Clock::now();
  std::vector<RankOutcome> outcomes;
  for (bool any = true; any;) {
    any = false;
    for (auto& process : processes_) {
      if (process->pid < 0) continue;
      any = true;
      if (base::Clock::now() - start > limit_) ::kill(process->pid, SIGKILL);
      if (!process->read_output(5)) process->reap();
    }
  }
  for (auto& process : processes_) outcomes.push_back(process->outcome);
  return outcomes;
}

AfterKill RankProcesses::kill_at_work(std::int64_t rank) {
  for (std::int64_t each = 0; each < std::ssize(processes_); ++each) (void)next_line(each);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const auto killed = base::Clock::now();
  signal(rank, SIGKILL);
  std::vector<RankOutcome> outcomes = wait();
  return {.outcomes = std::move(outcomes), .seconds = base::seconds_since(killed)};
}

std::vector<RankOutcome> on_processes(const std::string& program, const ProcessOptions& options) {
  return RankProcesses(program, options).wait();
}

}  // namespace dtrain::testing
