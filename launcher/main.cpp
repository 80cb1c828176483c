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

#include "dtrain/base/clock.h"
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
#include "launcher/local/local_ranks.h"
#include "launcher/local/watchdog.h"
#include "launcher/nodes/emulation.h"
#include "launcher/nodes/rendezvous.h"
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

/// Runs `action`; on an exception, calls `tell(status, message)` and returns its status.
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

/// Reports to the other nodes why this one starts no ranks.
void report_start_failure(NodeConnections& nodes, const Options& options, int status,
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

int supervise(PreparedJob job, WatchdogLink watchdog) {
  const Options options = job.options;
  const std::shared_ptr<NodeConnections> nodes = job.nodes;
  const int status = reported([&] { return run_attempts(std::move(job), std::move(watchdog)); },
                              [&](int failure, const std::string& message) {
                                write_error_for_a_while(error_line(options, message));
                                report_start_failure(*nodes, options, failure, message);
                              });
  if (options.node_rank == 0) nodes->wait_for_closing();
  return status;
}

/// Binds the ranks of this node. Emulated nodes divide the machine's CPUs.
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
PreparedJob prepare(const Options& options, Rendezvous rendezvous, const rlimit& open_files) {
  std::string program_file = find_program(options.program.front());
  require_files_for(rendezvous.placement.own().num_ranks);
  const bool is_alone = !rendezvous.placement.has_several_nodes();
  RendezvousSocket rendezvous_socket = is_alone ? make_rendezvous_socket() : RendezvousSocket{};
  CpuBinding binding = bind_ranks(options, rendezvous.placement);
  LogFolder folder(options, rendezvous.placement);
  return PreparedJob{.options = options,
                     .placement = std::move(rendezvous.placement),
                     .nodes = std::move(rendezvous.connections),
                     .program_file = std::move(program_file),
                     .port = std::move(rendezvous.port),
                     .rendezvous = std::move(rendezvous_socket),
                     .store_listener = std::move(rendezvous.store_listener),
                     .store_claim = std::move(rendezvous.store_claim),
                     .folder = std::move(folder),
                     .binding = std::move(binding),
                     .open_files = open_files};
}

Rendezvous single_node_rendezvous(const Options& options) {
  Rendezvous rendezvous;
  rendezvous.connections = std::make_shared<NodeConnections>();
  rendezvous.port = reserve_port(options.master_addr, options.master_port);
  rendezvous.placement.nodes = {
      NodePlace{.host = {}, .first_rank = 0, .num_ranks = options.num_ranks}};
  rendezvous.placement.master_addr = options.master_addr;
  rendezvous.placement.master_port = rendezvous.port.port;
  return rendezvous;
}

/// Runs this launcher in a job of several nodes.
int run_node(Options options, EmulatedStart start, const rlimit& open_files) {
  dtrain::base::count_suspensions();  // for the deadline of the rendezvous
  const std::string token = job_secret_of_environment();
  Rendezvous rendezvous = join_rendezvous(options, token, make_run_id(), std::move(start.listener));
  start.rendezvous.reset();
  std::shared_ptr<NodeConnections> nodes = rendezvous.connections;
  std::optional<PreparedJob> job;
  const int status = reported(
      [&] {
        job.emplace(prepare(options, std::move(rendezvous), open_files));
        return 0;
      },
      [&](int failure, const std::string& message) {
        write_error_for_a_while(error_line(options, message));  // the other nodes wait for this one
        report_start_failure(*nodes, options, failure, message);
      });
  nodes.reset();  // only the supervisor keeps the connections, so the other nodes see its death
  return job ? run_under_watchdog(*std::move(job), &supervise) : status;
}

/// Returns the first bytes of the file that a report is to replace.
///
/// Throws: as InputFile.
std::string head_of_report(const std::string& path) {
  constexpr std::int64_t kEnough = 64;
  std::error_code error;
  if (std::filesystem::file_size(path, error) == 0) return {};
  const auto file = dtrain::base::InputFile::open(
      path, {dtrain::base::ErrorKind::usage, "--report-file",
             "only an earlier report is overwritten: name another file"});
  std::string begin(static_cast<std::size_t>(std::min(kEnough, file.size())), '\0');
  file.read(0, std::as_writable_bytes(std::span(begin)));
  return begin;
}

/// Checks that the report can be written. Removes the report of an earlier job, which a program
/// could otherwise mistake for this one's.
void prepare_report_file(const Options& options) {
  constexpr auto kKind = dtrain::base::ErrorKind::usage;
  const std::string& path = options.report_file;
  if (path.empty() || options.node_rank != 0) return;
  const auto status = dtrain::base::link_status(path);
  if (std::filesystem::is_symlink(status)) {
    dtrain::base::fail(kKind,
                       "--report-file {}: it is a link, which the report would replace; name the "
                       "file that it points to",
                       path);
  }
  if (std::filesystem::is_regular_file(status) && !is_report_or_empty(head_of_report(path))) {
    dtrain::base::fail(kKind,
                       "--report-file {}: this file exists and is not a dtrun report, so it is not "
                       "overwritten; name another one",
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
  return run_under_watchdog(prepare(options, single_node_rendezvous(options), open_files),
                            &supervise);
}

}  // namespace

int main(int argc, char** argv) {
  dtrain::base::end_on_stop_signals();  // until the watchdog handles them
  dtrain::base::ensure_standard_streams();
  dtrain::base::ignore_file_size_signal();
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
        prepare_report_file(options);
        return run(options, open_files);
      },
      [&](int, const std::string& message) { write_error(error_line(options, message)); });
}
