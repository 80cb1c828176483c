// dtrun: starts the ranks of a job on this machine, supervises them, together with the dtruns of
// other nodes, and reports how they ended.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/io/input_file.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/net/message.h"
#include "launcher/environment.h"
#include "launcher/job.h"
#include "launcher/judge/attempts.h"
#include "launcher/judge/restarts.h"
#include "launcher/local/guard.h"
#include "launcher/local/local_ranks.h"
#include "launcher/nodes/emulation.h"
#include "launcher/nodes/meeting.h"
#include "launcher/options.h"
#include "launcher/output/output_writer.h"

namespace {

using namespace launcher;

void write_error(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

int print_and_end(std::string_view text) {
  dtrain::base::print(text);
  return 0;
}

/// Runs `action`; on an exception, `tell(status, message)` is called, and its status is returned.
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
  tell(status, dtrain::base::with_open_file_limit(std::move(message)));
  return status;
}

std::string error_line(const Options& options, const std::string& message) {
  return own_prefix(options) + "error: " + message + "\n";
}

/// Tells the other nodes why this one starts no ranks.
void tell_failure(NodeConnections& nodes, const Options& options, int status,
                  const std::string& message) {
  if (options.node_rank == 0) {
    const std::string line = fmt::format("failed: node 0 did not start: {}", message);
    const AbortOrder order{
        .rank = 0, .reason = "did not start", .quietly = false, .status = status};
    nodes.send_to_all(NodeMessage::abort, encode(order));
    nodes.send_to_all(NodeMessage::finish,
                      encode(JobResult{.status = status, .failed = true, .line = line}));
  } else {
    nodes.send(0, NodeMessage::node_failed,
               dtrain::net::MessageWriter()
                   .number(static_cast<std::uint64_t>(status))
                   .text(message)
                   .bytes());
  }
  nodes.wait_for_closing();
}

int supervise(PreparedJob job, GuardLink guard) {
  const Options options = job.options;
  const std::shared_ptr<NodeConnections> nodes = job.nodes;
  const int status = reported([&] { return run_attempts(std::move(job), std::move(guard)); },
                              [&](int failure, const std::string& message) {
                                write_error_for_a_while(error_line(options, message));
                                tell_failure(*nodes, options, failure, message);
                              });
  if (options.node_rank == 0) nodes->wait_for_closing();
  return status;
}

/// Binds the ranks of this node. Emulated nodes share a machine: each takes its part.
CpuBinding bind_ranks(const Options& options, const Placement& placement) {
  if (options.bind == Bind::none) return {};
  const bool is_part = options.emulate_nodes > 0;
  const NodePlace& own = placement.own();
  CpuBinding binding =
      launcher::bind_ranks(options.bind, read_topology(dtrain::base::affinity_mask()),
                           is_part ? placement.world_size() : own.num_ranks);
  if (is_part) {
    const auto begin = binding.masks.begin() + own.first_rank;
    binding.masks = {begin, begin + own.num_ranks};
  }
  return binding;
}

/// Prepares the ranks of this node, whose placement is known.
PreparedJob prepare(const Options& options, Meeting meeting, const rlimit& open_files) {
  std::string program_file = find_program(options.program.front());
  require_files_for(meeting.placement.own().num_ranks);
  const bool is_alone = !meeting.placement.has_several_nodes();
  Door door = is_alone ? make_door() : Door{};
  CpuBinding binding = bind_ranks(options, meeting.placement);
  LogFolder folder(options, meeting.placement);
  return PreparedJob{.options = options,
                     .placement = std::move(meeting.placement),
                     .nodes = std::move(meeting.channel),
                     .program_file = std::move(program_file),
                     .port = std::move(meeting.port),
                     .door = std::move(door),
                     .store_listener = std::move(meeting.store_listener),
                     .store_claim = std::move(meeting.store_claim),
                     .folder = std::move(folder),
                     .binding = std::move(binding),
                     .open_files = open_files};
}

Meeting meet_nobody(const Options& options) {
  Meeting meeting;
  meeting.channel = std::make_shared<NodeConnections>();
  meeting.port = reserve_port(options.master_addr, options.master_port);
  meeting.placement.nodes = {
      NodePlace{.host = {}, .first_rank = 0, .num_ranks = options.num_ranks}};
  meeting.placement.master_addr = options.master_addr;
  meeting.placement.master_port = meeting.port.port;
  return meeting;
}

/// Runs this launcher's part in a job of several nodes.
int run_node(Options options, EmulatedStart start, const rlimit& open_files) {
  const std::string token = job_secret_of_environment();
  Meeting meeting = meet(options, token, make_run_id(), std::move(start.listener));
  start.meeting.reset();
  std::shared_ptr<NodeConnections> nodes = meeting.channel;
  std::optional<PreparedJob> job;
  const int status = reported(
      [&] {
        job.emplace(prepare(options, std::move(meeting), open_files));
        return 0;
      },
      [&](int failure, const std::string& message) {
        write_error_for_a_while(error_line(options, message));  // the other nodes wait for this one
        tell_failure(*nodes, options, failure, message);
      });
  nodes.reset();  // the supervisor's alone from here on: others see it close when that one dies
  return job ? run_guarded(*std::move(job), &supervise) : status;
}

/// Returns the first bytes of the file that a report is to replace.
///
/// Throws: as InputFile.
std::string begin_of_report(const std::string& path) {
  constexpr std::int64_t kEnough = 64;
  std::error_code error;
  if (std::filesystem::file_size(path, error) == 0) return {};
  const auto file = dtrain::base::InputFile::open(
      path,
      {dtrain::base::ErrorKind::usage, "--report-file", "only a report is replaced: name another"});
  std::string begin(static_cast<std::size_t>(std::min(kEnough, file.size())), '\0');
  file.read(0, std::as_writable_bytes(std::span(begin)));
  return begin;
}

/// Finds at the start what cannot be written at the end. Removes the report of an earlier job: if
/// nothing is written, a program would take it for that of this one.
void begin_report_file(const Options& options) {
  constexpr auto kKind = dtrain::base::ErrorKind::usage;
  const std::string& path = options.report_file;
  if (path.empty() || options.node_rank != 0) return;
  const auto status = dtrain::base::link_status(path);
  if (std::filesystem::is_symlink(status)) {
    dtrain::base::fail(kKind,
                       "--report-file {}: it is a link, which a report would replace; name "
                       "the file",
                       path);
  }
  if (std::filesystem::is_regular_file(status) && !is_report_or_empty(begin_of_report(path))) {
    dtrain::base::fail(kKind,
                       "--report-file {}: this file is no report of dtrun, and stays as it "
                       "is; name another one",
                       path);
  }
  const dtrain::base::AtomicFile probe(path, kKind);
  dtrain::base::Disk(kKind).remove_file(path);
}

int run(Options options, const rlimit& open_files) {
  if (options.emulate_nodes > 0) {
    return run_emulated(options, [&](Options own, EmulatedStart start) {
      return reported(
          [&] { return run_node(own, std::move(start), open_files); },
          [&](int, const std::string& message) { write_error(error_line(own, message)); });
    });
  }
  if (options.num_nodes > 1) return run_node(std::move(options), {}, open_files);
  return run_guarded(prepare(options, meet_nobody(options), open_files), &supervise);
}

}  // namespace

int main(int argc, char** argv) {
  dtrain::base::end_on_stop_signals();  // until the guard takes them
  dtrain::base::secure_standard_streams();
  dtrain::base::survive_file_size_limit();
  rlimit open_files{};
  ::getrlimit(RLIMIT_NOFILE, &open_files);
  dtrain::base::raise_open_file_limit();
  Options options;
  return reported(
      [&] {
        options = parse_options({argv + 1, argv + argc});
        if (!options.help.empty()) return print_and_end(options.help);
        if (options.version) return print_and_end("dtrun " DTRAIN_VERSION "\n");
        for (const std::string& remark : options.remarks) {
          write_error(own_prefix(options) + remark + "\n");
        }
        begin_report_file(options);
        return run(options, open_files);
      },
      [&](int, const std::string& message) { write_error(error_line(options, message)); });
}
