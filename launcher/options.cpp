#include "launcher/options.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/nearest.h"
#include "dtrain/base/number.h"
#include "dtrain/base/rank_env.h"
#include "launcher/environment.h"

namespace launcher {
namespace {

using dtrain::base::ErrorKind;
using dtrain::base::fail;

/// One option: its help, and what it does to the options.
struct OptionRow {
  std::string_view name;   // with dashes; underscores are accepted as well
  std::string_view value;  // placeholder in the help; empty: a switch
  std::string_view help;
  void (*apply)(Options& options, std::string_view name, std::string_view value);
};

template <typename Number>
Number number_in(std::string_view name, std::string_view text, Number low, Number high) {
  const auto value = dtrain::base::number_in<Number>(text);
  if (!value || !(*value >= low) || !(*value <= high)) {
    fail(ErrorKind::usage, "{}: found '{}'; give a number from {} to {}", name, text, low, high);
  }
  return *value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

constexpr int kMaxRanks = 4096;

int num_ranks_from(std::string_view name, std::string_view value) {
  const int gpus = value == "auto" || value == "gpu" ? count_gpus() : 0;
  if (value == "cpu" || (value == "auto" && gpus == 0)) {
    return static_cast<int>(dtrain::base::usable_cores());
  }
  if (value == "auto") return gpus;
  if (value == "gpu") {
    if (gpus == 0) fail(ErrorKind::usage, "{} gpu: no GPU found; give a number, or cpu", name);
    return gpus;
  }
  if (value.empty() || value.find_first_not_of("0123456789") != std::string_view::npos) {
    fail(ErrorKind::usage, "{}: found '{}'; give a number of ranks, auto, gpu or cpu", name, value);
  }
  return number_in<int>(name, value, 1, kMaxRanks);
}

StreamChoice streams_from(std::string_view name, std::string_view value) {
  if (value.find(':') == std::string_view::npos) {
    return StreamChoice(number_in<int>(name, value, 0, 3));
  }
  std::map<int, int> per_rank;
  for (const std::string_view part : split(value, ',')) {
    const auto colon = part.find(':');
    if (colon == std::string_view::npos) {
      fail(ErrorKind::usage, "{}: found '{}'; give 0 to 3, or RANK:0-3 pairs such as 0:3,1:1", name,
           value);
    }
    per_rank[number_in<int>(name, part.substr(0, colon), 0, kMaxRanks - 1)] =
        number_in<int>(name, part.substr(colon + 1), 0, 3);
  }
  return StreamChoice(std::move(per_rank));
}

Bind bind_from(std::string_view name, std::string_view value) {
  if (value == "none") return Bind::none;
  if (value == "cores") return Bind::cores;
  if (value == "numa") return Bind::numa;
  fail(ErrorKind::usage, "{}: found '{}'; give none, cores or numa", name, value);
}

void require_one_node(std::string_view name, std::string_view value) {
  if (value == "1" || value == "1:1") return;
  fail(ErrorKind::usage, "{}: found '{}'; more than one node is not built yet: give 1", name,
       value);
}

constexpr double kMaxGraceSeconds = 86400.0;

constexpr std::array kRows = {
    OptionRow{"--nproc-per-node", "N",
              "ranks to start (or -n): a number, auto (GPUs, else cores), gpu or cpu [1]",
              [](Options& o, std::string_view n, std::string_view v) {
                o.num_ranks = num_ranks_from(n, v);
              }},
    OptionRow{"--nnodes", "N", "nodes of the job; 1 for now [1]",
              [](Options&, std::string_view n, std::string_view v) { require_one_node(n, v); }},
    OptionRow{"--standalone", "", "one node; the default, accepted for torchrun's sake",
              [](Options&, std::string_view, std::string_view) {}},
    OptionRow{
        "--master-addr", "ADDRESS", "address where rank 0 is met [127.0.0.1]",
        [](Options& o, std::string_view, std::string_view v) { o.master_addr = std::string(v); }},
    OptionRow{"--master-port", "PORT", "port where rank 0 is met; 0 takes a free one [0]",
              [](Options& o, std::string_view n, std::string_view v) {
                o.master_port = number_in<int>(n, v, 0, 65535);
              }},
    OptionRow{"--log-dir", "DIR", "a file for each rank and stream, under DIR; alone: --tee 3",
              [](Options& o, std::string_view, std::string_view v) { o.log_dir = std::string(v); }},
    OptionRow{"--redirects", "WHICH",
              "streams that go to files only: 0 none, 1 output, 2 error, 3 both, or 0:3,1:1 [0]",
              [](Options& o, std::string_view n, std::string_view v) {
                o.redirects = streams_from(n, v);
              }},
    OptionRow{
        "--tee", "WHICH", "streams that go to files and the console, numbered alike [0]",
        [](Options& o, std::string_view n, std::string_view v) { o.tee = streams_from(n, v); }},
    OptionRow{"--local-ranks-filter", "LIST", "show only these ranks on the console, e.g. 0,3",
              [](Options& o, std::string_view n, std::string_view v) {
                for (const std::string_view part : split(v, ',')) {
                  o.local_ranks_filter.push_back(number_in<int>(n, part, 0, kMaxRanks - 1));
                }
              }},
    OptionRow{
        "--bind", "WHAT",
        "where ranks may run: none (anywhere), cores (each on its own), numa (a node each) [none]",
        [](Options& o, std::string_view n, std::string_view v) { o.bind = bind_from(n, v); }},
    OptionRow{"--abort-grace", "SECONDS",
              "after a rank failed, time for the others between SIGTERM and SIGKILL [2]",
              [](Options& o, std::string_view n, std::string_view v) {
                o.abort_grace =
                    std::chrono::duration<double>(number_in<double>(n, v, 0.0, kMaxGraceSeconds));
              }},
    OptionRow{"--stop-grace", "SECONDS",
              "after SIGINT or SIGTERM, time for the ranks to save before SIGKILL [60]",
              [](Options& o, std::string_view n, std::string_view v) {
                o.stop_grace =
                    std::chrono::duration<double>(number_in<double>(n, v, 0.0, kMaxGraceSeconds));
              }},
    OptionRow{"--help", "", "print this and leave (or -h)",
              [](Options& o, std::string_view, std::string_view) { o.help = true; }},
    OptionRow{"--version", "", "print the version and leave",
              [](Options& o, std::string_view, std::string_view) { o.version = true; }},
};

/// An option of torchrun that dtrun does not have, and what to do instead.
struct ForeignOption {
  std::string_view name;
  std::string_view advice;
};

constexpr std::string_view kOneNode = "leave it out: dtrun starts the ranks of one node";
constexpr std::string_view kNoPython = "leave it out: any program is started, dtrun -- PROGRAM";
constexpr ForeignOption kForeignOptions[] = {
    {"--max-restarts",
     "dtrun starts nothing again; call it again, where dtrain has --resume auto and "
     "--checkpoint-every"},
    {"--monitor-interval", "leave it out: dtrun sees at once that a rank ended"},
    {"--rdzv-backend", kOneNode},
    {"--rdzv-endpoint", "leave it out, or give --master-addr and --master-port"},
    {"--rdzv-id", kOneNode},
    {"--rdzv-conf", kOneNode},
    {"--node-rank", kOneNode},
    {"--local-addr", "leave it out, or give --master-addr"},
    {"--role", kOneNode},
    {"--start-method", kNoPython},
    {"--no-python", kNoPython},
    {"--module", "dtrun starts programs, not modules: dtrun -- python3 -m MODULE"},
    {"-m", "dtrun starts programs, not modules: dtrun -- python3 -m MODULE"},
};

std::string canonical(std::string_view name) {
  if (name == "-n") return "--nproc-per-node";
  if (name == "-h") return "--help";
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  return dashed;
}

const OptionRow& find_row(std::string_view given) {
  const std::string name = canonical(given);
  for (const OptionRow& row : kRows) {
    if (row.name == name) return row;
  }
  const auto* foreign = std::ranges::find(kForeignOptions, name, &ForeignOption::name);
  if (foreign != std::end(kForeignOptions)) {
    fail(ErrorKind::usage, "unknown option {}: {}", given, foreign->advice);
  }
  std::vector<std::string_view> names;
  for (const OptionRow& row : kRows) names.push_back(row.name);
  fail(ErrorKind::usage, "unknown option {}{} (dtrun --help lists all)", given,
       dtrain::base::did_you_mean(dtrain::base::nearest(name, names)));
}

/// Applies the option at `index` and returns the index after it.
std::size_t take_option(const std::vector<std::string>& arguments, std::size_t index,
                        Options& options) {
  const std::string_view argument = arguments[index];
  std::string_view name = argument.substr(0, argument.find('='));
  std::optional<std::string_view> value;
  if (argument.starts_with("-n") && argument.size() > 2) {  // -n2
    name = "-n";
    value = argument.substr(argument[2] == '=' ? 3 : 2);
  } else if (name.size() < argument.size()) {
    value = argument.substr(name.size() + 1);
  }
  const OptionRow& row = find_row(name);
  if (row.value.empty()) {
    if (value) fail(ErrorKind::usage, "{} takes no value; found '{}'", name, *value);
    row.apply(options, name, {});
    return index + 1;
  }
  if (!value) {
    if (++index == arguments.size()) fail(ErrorKind::usage, "{} needs a value", name);
    value = arguments[index];
  }
  row.apply(options, name, *value);
  return index + 1;
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
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  std::size_t index = 0;
  while (index < arguments.size() && arguments[index].starts_with("-")) {
    if (arguments[index] == "--") {
      ++index;
      break;
    }
    index = take_option(arguments, index, options);
  }
  options.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(index), arguments.end());
  if (!options.log_dir.empty() && !options.redirects.any() && !options.tee.any()) {
    options.tee = StreamChoice(3);
  }
  if (!options.help && !options.version) check_together(options);
  return options;
}

std::string help_text() {
  std::string text =
      "usage: dtrun [options] [--] PROGRAM [ARGUMENTS]\n"
      "Starts PROGRAM once for each rank, ends all when one fails, and exits with the first\n"
      "failing rank's status (docs/dtrun.md, docs/exit-status.md).\n\n";
  for (const OptionRow& row : kRows) {
    text += fmt::format("  {:<28} {}\n", fmt::format("{} {}", row.name, row.value), row.help);
  }
  return text;
}

}  // namespace launcher
