#include "launcher/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/host/arguments.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/base/text/number.h"
#include "dtrain/base/text/text.h"
#include "launcher/environment.h"
#include "launcher/option_values.h"

namespace launcher {
namespace {

using dtrain::base::ErrorKind;
using dtrain::base::fail;
using dtrain::base::split;

/// One option: its help, and the function that applies it to the options.
struct OptionRow {
  const char* names;  // with dashes and commas, the long one first
  const char* value;  // placeholder in the help; empty: a switch
  const char* help;   // empty: accepted for torchrun compatibility
  void (*apply)(Options& options, std::string_view name, std::string_view value);
  bool is_of_nodes = false;  // describes the nodes of the job

  [[nodiscard]] std::string name() const {
    const std::string_view all = names;
    return std::string(all.substr(0, all.find(',')));
  }
  [[nodiscard]] bool is_switch() const { return *value == '\0'; }
};

constexpr int kMaxRestarts = 1'000'000;
constexpr int kMaxEmulatedNodes = 64;
constexpr int kDefaultMeetingPort = 29500;  // torchrun's

/// Ignores an option that torchrun needs and dtrun does not, or that is parsed separately.
void accept(Options&, std::string_view, std::string_view) {}

/// Sets `field` to read(name, value).
template <auto field, auto read>
void set(Options& options, std::string_view name, std::string_view value) {
  options.*field = read(name, value);
}

template <int low, int high>
int number_from(std::string_view name, std::string_view value) {
  return number_in<int>(name, value, low, high);
}

std::string text_from(std::string_view, std::string_view value) { return std::string(value); }

std::chrono::duration<double> grace_from(std::string_view name, std::string_view value) {
  return seconds_from(name, value, 0.0);
}

std::chrono::duration<double> timeout_from(std::string_view name, std::string_view value) {
  return seconds_from(name, value, kLeastTimeout);
}

/// May be given several times.
void add_filtered_ranks(Options& options, std::string_view name, std::string_view value) {
  for (const std::string_view part : split(value, ',')) {
    options.local_ranks_filter.push_back(number_in<int>(name, part, 0, kMaxRanks - 1));
  }
}

constexpr std::array kRows = {
    OptionRow{"--nproc-per-node,--np,-n", "N",
              "ranks to start: a number, auto (GPUs, else cores), gpu or cpu [1]",
              set<&Options::num_ranks, num_ranks_from>},
    OptionRow{"--nnodes", "N", "nodes of the job; start a dtrun on each [1]",
              set<&Options::num_nodes, num_nodes_from>, /*is_of_nodes=*/true},
    OptionRow{"--node-rank", "R", "index of this node, from 0",
              set<&Options::node_rank, number_from<0, kMaxNodes - 1>>, /*is_of_nodes=*/true},
    OptionRow{"--standalone", "", "one node; the default, accepted for torchrun compatibility",
              accept},
    OptionRow{"--rdzv-endpoint", "HOST[:PORT]", "--master-addr and --master-port in one option",
              set<&Options::rdzv_endpoint, text_from>},
    OptionRow{"--rdzv-backend", "NAME", "", accept},
    OptionRow{"--rdzv-id", "NAME", "", accept},
    OptionRow{"--monitor-interval", "TIME", "", accept},
    OptionRow{"--role", "NAME", "", accept},
    OptionRow{"--local-addr", "ADDRESS", "", accept},
    OptionRow{"--master-addr", "ADDRESS", "address or name of node 0 [one node: 127.0.0.1]",
              set<&Options::master_addr, text_from>, /*is_of_nodes=*/true},
    OptionRow{
        "--master-port", "PORT",
        "several nodes: port of node 0's dtrun [29500]; one node: port of rank 0 [a free port]",
        set<&Options::master_port, number_from<0, 65535>>, /*is_of_nodes=*/true},
    OptionRow{"--rdzv-timeout", "TIME", "time for all nodes to join [600]",
              set<&Options::rdzv_timeout, timeout_from>},
    OptionRow{"--heartbeat-timeout", "TIME",
              "a node that is silent for this long is lost; node 0's value applies [10]",
              set<&Options::heartbeat_timeout, timeout_from>},
    OptionRow{
        "--hang-timeout", "TIME",
        "a rank without progress for this long ends the job; 0: never [20 steps, at least 10m]",
        set<&Options::hang_timeout, hang_timeout_from>},
    OptionRow{"--emulate-nodes", "K",
              "for tests: emulate K nodes on this machine, each with -n ranks",
              set<&Options::emulate_nodes, number_from<2, kMaxEmulatedNodes>>},
    OptionRow{"--log-dir", "DIR",
              "write a log file per rank and stream under DIR; without -r and -t, implies --tee 3",
              set<&Options::log_dir, text_from>},
    OptionRow{
        "--redirects,-r", "WHICH",
        "streams that go to files only: 0 none, 1 output, 2 error, 3 both; per rank: 0:3,1:1 [0]",
        set<&Options::redirects, streams_from>},
    OptionRow{"--tee,-t", "WHICH",
              "streams that go to files and the console, same numbers as --redirects [0]",
              set<&Options::tee, streams_from>},
    OptionRow{"--log-size-limit", "SIZE",
              "rotate a log of this size to FILE.1, replacing the previous one; 0: no limit [1GiB]",
              set<&Options::log_size_limit, size_from>},
    OptionRow{"--local-ranks-filter", "LIST", "show only these ranks on the console, e.g. 0,3",
              add_filtered_ranks},
    OptionRow{"--bind", "WHAT",
              "pin ranks: none, cores (each to its own cores), numa (each to a NUMA node) [none]",
              set<&Options::bind, bind_from>},
    OptionRow{"--abort-grace", "TIME",
              "after a rank failed, time for the others between SIGTERM and SIGKILL [2]",
              set<&Options::abort_grace, grace_from>},
    OptionRow{"--stop-grace", "TIME",
              "after SIGINT or SIGTERM, time for the ranks to save before SIGKILL [60]",
              set<&Options::stop_grace, grace_from>},
    OptionRow{"--max-restarts", "K",
              "restart a failed job, at most K times; dtrain then resumes [0]",
              set<&Options::max_restarts, number_from<0, kMaxRestarts>>},
    OptionRow{"--restart-backoff", "TIME",
              "wait before a restart; doubles, up to 60, while no newer checkpoint appears [1]",
              set<&Options::restart_backoff, grace_from>},
    OptionRow{"--report-file", "FILE", "write how the job ended to FILE, as JSON",
              set<&Options::report_file, text_from>},
    OptionRow{"--version,-V", "", "print the version and exit", accept},
};

/// "PET_NNODES" of --nnodes: torchrun's variables are defaults of its options, and of ours.
std::string variable_of(const std::string& name) {
  std::string variable = "PET_";
  for (const char c : name.substr(2)) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

void add_options(CLI::App& app) {
  dtrain::base::set_up_parser(app);
  app.prefix_command();
  app.get_help_ptr()->group("options");
  for (const OptionRow& row : kRows) {
    CLI::Option* option = row.is_switch() ? app.add_flag(row.names)->disable_flag_override()
                                          : app.add_option(row.names);
    option->type_name(row.value)->description(row.help);
    option->group(*row.help == '\0' ? "accepted for torchrun compatibility, without effect"
                                    : "options");
    if (row.name() != "--version") option->envname(variable_of(row.name()));
  }
}

/// The names of the options that were given.
using Given = std::vector<std::string>;

bool is_given(const Given& given, std::string_view name) {
  return std::ranges::find(given, name) != given.end();
}

/// The option as `words` spell it: "-n" of "-n3".
std::string spelling_of(const OptionRow& row, std::span<const std::string> words) {
  std::string spelling = row.name();
  for (const std::string& word : words) {
    const std::string typed = word.substr(0, word.find('='));
    const std::string flag = dtrain::base::canonical_flag(typed);
    for (const std::string_view name : split(row.names, ',')) {
      const bool is_letter = name.size() == 2;
      if (flag == name) spelling = typed;
      if (flag != name && is_letter && flag.starts_with(name)) spelling = name;
    }
  }
  return spelling;
}

/// Reads options from the command line `words`, then missing ones from the environment.
Given take_options(const CLI::App& app, std::span<const std::string> words, Options& options) {
  Given given;
  bool has_one_node = false;
  for (const bool is_typed : {true, false}) {
    for (const OptionRow& row : kRows) {
      const CLI::Option* option = app.get_option(row.name());
      const bool is_on_line = std::ranges::count(app.parse_order(), option) > 0;
      if (option->count() == 0 || is_on_line != is_typed) continue;
      if (has_one_node && row.is_of_nodes) continue;
      const std::vector<std::string>& values = option->results();
      if (row.is_switch() && (values.back() == "0" || values.back() == "false")) continue;
      const std::string name = is_typed ? spelling_of(row, words) : variable_of(row.name());
      for (const std::string& value : values) row.apply(options, name, value);
      given.push_back(row.name());
    }
    // Overrides an environment that describes several nodes.
    has_one_node = is_given(given, "--standalone") || is_given(given, "--emulate-nodes") ||
                   (is_given(given, "--nnodes") && options.num_nodes == 1);
  }
  return given;
}

/// The program and its arguments, which follow the options.
std::vector<std::string> program_of(const CLI::App& app) {
  std::vector<std::string> words = app.remaining();
  if (words.empty() || !words.front().starts_with('-')) return words;
  if (words.front() == "--") return {words.begin() + 1, words.end()};
  std::string flag = dtrain::base::as_typed(words.front());
  flag.resize(std::min(flag.find('='), flag.size()));
  std::ranges::replace(flag, '_', '-');
  if (const std::string_view advice = advice_on_foreign(flag); !advice.empty()) {
    fail(ErrorKind::usage, "unknown option {}: {}", flag, advice);
  }
  fail(ErrorKind::usage,
       "unknown option {}{} (dtrun --help lists all options; the program's own options follow its "
       "name)",
       flag, dtrain::base::nearest_advice(flag, dtrain::base::flags_of(app)));
}

/// "HOST:PORT", "HOST" or "[ADDRESS]:PORT". One node needs none.
void take_endpoint(Options& options, Given& given) {
  std::string_view host = options.rdzv_endpoint;
  if (host.empty() || options.num_nodes == 1) return;
  const bool is_bare_ipv6 = host.front() != '[' && std::ranges::count(host, ':') > 1;
  const auto colon = is_bare_ipv6 || host.ends_with(']') ? host.npos : host.rfind(':');
  if (colon != host.npos && !is_given(given, "--master-port")) {
    options.master_port = number_in<int>("--rdzv-endpoint", host.substr(colon + 1), 0, 65535);
    given.emplace_back("--master-port");
  }
  host = host.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (is_given(given, "--master-addr")) return;
  options.master_addr = std::string(host);
  given.emplace_back("--master-addr");
}

/// Kubernetes operators set WORLD_SIZE for jobs of several nodes; without further options each
/// dtrun would run a separate job.
std::string warning_on(const Options& options) {
  const std::string inherited = environment_value("WORLD_SIZE");
  const bool is_within_job = !environment_value("DTRUN_CONTROL_FD").empty();
  const int own = options.num_ranks * std::max(options.emulate_nodes, 1);
  if (inherited.empty() || is_within_job || options.num_nodes > 1 ||
      inherited == std::to_string(own)) {
    return {};
  }
  return fmt::format(
      "warning: replacing WORLD_SIZE={} of the environment: this job has {} rank{}; for several "
      "nodes give --nnodes and --node-rank, or set PET_NNODES and PET_NODE_RANK",
      inherited, own, own == 1 ? "" : "s");
}

/// Rejects an address of node 0 with a port or brackets.
void check_master_addr(const std::string& address) {
  if (address.find('[') != std::string::npos) {
    fail(ErrorKind::usage, "--master-addr: found '{}'; leave out the brackets{}", address,
         address.ends_with("]") ? "" : ", and give the port with --master-port");
  }
  if (std::ranges::count(address, ':') == 1) {  // an IPv6 address has more
    fail(ErrorKind::usage, "--master-addr: found '{}'; the port goes into --master-port", address);
  }
}

/// Rejects --node-rank without --nnodes, unless it can mean a job of one node.
void check_one_node(const Options& options, const Given& given) {
  if (is_given(given, "--nnodes") || !is_given(given, "--node-rank")) return;
  if (options.node_rank == 0 && !is_given(given, "--master-addr")) return;
  fail(ErrorKind::usage, "--node-rank {} needs the number of nodes: give --nnodes, too",
       options.node_rank);
}

/// Notes of options that have no effect here.
std::vector<std::string> notes_on(const Options& options, const Given& given) {
  std::vector<std::string> notes;
  const auto note = [&](std::string_view name, std::string_view why) {
    if (is_given(given, name))
      notes.push_back(fmt::format("note: {} has no effect: {}", name, why));
  };
  if (options.num_nodes == 1 && options.emulate_nodes == 0) {
    note("--rdzv-timeout", "there is one node");
    note("--heartbeat-timeout", "there is one node");
  }
  // On other nodes, node 0's values apply, and all nodes may share one command line.
  if (options.node_rank == 0 && options.max_restarts == 0)
    note("--restart-backoff", "there is no --max-restarts");
  return notes;
}

void settle_nodes(Options& options, const Given& given) {
  if (is_given(given, "--master-addr")) check_master_addr(options.master_addr);
  if (options.emulate_nodes == 0) check_one_node(options, given);
  if (options.emulate_nodes > 0) {
    for (const std::string_view name :
         {"--nnodes", "--node-rank", "--master-addr", "--master-port"}) {
      if (!is_given(given, name)) continue;
      fail(ErrorKind::usage, "--emulate-nodes starts all nodes here: leave out {}", name);
    }
  }
  if (is_given(given, "--standalone") && options.num_nodes > 1) {
    fail(ErrorKind::usage, "--standalone means one node, but --nnodes is {}: leave out one of them",
         options.num_nodes);
  }
  if (options.num_nodes > 1) {
    for (const std::string_view name : {"--node-rank", "--master-addr"}) {
      if (is_given(given, name)) continue;
      fail(ErrorKind::usage, "--nnodes {} needs {}: {}", options.num_nodes, name,
           name == "--node-rank" ? "0 on the first node, 1 on the next ..."
                                 : "node 0's address, the same on all nodes");
    }
    if (options.master_port == 0) options.master_port = kDefaultMeetingPort;
  }
  if (options.node_rank >= options.num_nodes) {
    fail(ErrorKind::usage, "--node-rank: found {} with --nnodes {}; give 0 to {}",
         options.node_rank, options.num_nodes, options.num_nodes - 1);
  }
}

void check_together(const Options& options) {
  if (options.program.empty()) {
    fail(ErrorKind::usage, "no program given; write it last: dtrun -n 2 -- PROGRAM ARGUMENTS");
  }
  for (const int rank : options.local_ranks_filter) {
    if (rank >= options.num_ranks) {
      fail(ErrorKind::usage, "--local-ranks-filter: found rank {} with {} ranks; give 0 to {}",
           rank, options.num_ranks, options.num_ranks - 1);
    }
  }
  const int named = std::max(options.tee.last_named(), options.redirects.last_named());
  if (named >= options.num_ranks) {
    fail(ErrorKind::usage, "{}: found rank {} with {} ranks; give 0 to {}",
         named == options.tee.last_named() ? "--tee" : "--redirects", named, options.num_ranks,
         options.num_ranks - 1);
  }
}

std::string help_text(const CLI::App& app) {
  constexpr std::size_t kColumns = 100;
  return fmt::format(
      "usage: dtrun [options] [--] PROGRAM [ARGUMENTS]\n{}\n{}\nTIME is {}.\nSIZE is a number of "
      "bytes, or has a unit: 64MiB, 1GB.\nVariables such as PET_NNODES set the defaults of these "
      "options, as with torchrun.\n",
      dtrain::base::wrapped(app.get_description(), kColumns),
      dtrain::base::flags_help(app, kColumns), dtrain::base::kDurationForms);
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Starts PROGRAM once for each rank, ends all when one fails, and exits with the first "
      "failing rank's status (docs/guide/dtrun.md, docs/guide/exit-status.md).",
      "dtrun");
  add_options(app);
  Options options;
  try {
    dtrain::base::parse_arguments(app, arguments);
  } catch (const CLI::CallForHelp&) {
    options.help = help_text(app);
    return options;
  }
  options.program = program_of(app);
  options.version = app.get_option("--version")->count() > 0;
  if (options.version) return options;  // whatever the environment says
  const std::size_t num_words = arguments.size() - options.program.size();
  Given given = take_options(app, std::span(arguments).first(num_words), options);
  if (!options.log_dir.empty() && !options.redirects.any() && !options.tee.any()) {
    options.tee = StreamChoice(3);
  }
  take_endpoint(options, given);
  const auto step = dtrain::base::slurm_step_of_process();
  if (step) take_from_slurm(*step, options, given);
  settle_nodes(options, given);
  check_together(options);
  options.remarks = notes_on(options, given);
  if (std::string warning = warning_on(options); !warning.empty()) {
    options.remarks.push_back(std::move(warning));
  }
  return options;
}

std::string own_prefix(const Options& options) {
  return options.node_rank == 0 ? "dtrun: " : fmt::format("dtrun (node {}): ", options.node_rank);
}

}  // namespace launcher
