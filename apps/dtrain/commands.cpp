#include "commands.h"

#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/host/arguments.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/config/resolve/advice.h"
#include "provenance.h"
#include "ranks.h"
#include "tool.h"

namespace dtrain::app {
namespace {

using base::ErrorKind;
using base::fail;
using config::Command;

/// A subcommand whose flags are settings.
struct SettingsCommand {
  std::string_view path;
  Command command;
  int (*run)(const config::CommandLine&);
  const char* description;
  /// Replaces the generated usage line in its help; may be empty.
  std::string_view usage = {};
};

constexpr SettingsCommand kSettingsCommands[] = {
    {"dtrain train", Command::train, run_train, "train a model (the default)"},
    {"dtrain data baseline", Command::train, run_baseline,
     "print the validation loss, in nats per token, of byte bigram and trigram models, on the same "
     "text as a training run with these flags",
     "dtrain data baseline --data FILE [--val-fraction F | --val-data FILE] [flags of train]"},
    {"dtrain generate", Command::generate, run_generate, "continue a text with a trained model",
     "dtrain generate --from RUN [--prompt TEXT | --prompt-file FILE | --prompts FILE] [flags]"},
    {"dtrain evaluate", Command::evaluate, run_evaluate,
     "measure a trained model's loss, in nats per token, on a file or its last part "
     "(--val-fraction); omitted settings default to those of the training run",
     "dtrain evaluate --from RUN --data FILE [--val-fraction F] [flags]"},
    {"dtrain verify", Command::verify, run_verify,
     "compare this build's results with golden results of the reference implementation",
     "dtrain verify --golden FIXTURE.safetensors [--trajectory FILE.json --name NAME] [flags]"},
    {"dtrain checkpoint export", Command::export_checkpoint, export_checkpoint,
     "write the weights as one safetensors file with the reference's names and shapes, or as a "
     "folder in Hugging Face's format"},
    {"dtrain checkpoint import", Command::import_checkpoint, import_checkpoint,
     "write a checkpoint from a model file, for --init-from"},
    {"dtrain doctor", Command::doctor, run_doctor,
     "check the machines and files that a job with these flags would use",
     "dtrain doctor [flags of train]\ndtrun -n 2 -- dtrain doctor [flags of train]"},
    {"dtrain plan", Command::plan, run_plan,
     "rank the layouts of a job by predicted speed; show their memory, and the command line of the "
     "best one",
     "dtrain plan [flags of train] [--ranks N] [--device-memory SIZE] [--link SIZE]"}};

// The row of a command; null if its flags are not settings.
const SettingsCommand* settings_command(std::string_view path) {
  const auto* row = std::ranges::find(kSettingsCommands, path, &SettingsCommand::path);
  return row == std::end(kSettingsCommands) ? nullptr : row;
}

void add_command(CLI::App& parent, const std::string& name, Action& action) {
  const auto* row = settings_command(fmt::format("{} {}", base::command_path(parent), name));
  CLI::App* app = parent.add_subcommand(name, row->description);
  config::add_settings(*app, row->command);
  app->callback([app, row, &action] {
    const auto line =
        std::make_shared<config::CommandLine>(config::parsed_settings(*app, row->command));
    action = [line, row] { return row->run(*line); };
  });
}

bool is_help(std::string_view word) { return word == "--help" || word == "-h"; }

// Names that other programs use for our subcommands.
struct OtherName {
  std::string_view names;  // separated by spaces
  std::string_view use;
  std::string_view parent = "dtrain";
};

constexpr OtherName kOtherNames[] = {
    {"list ls", "dtrain checkpoint list RUN"},
    {"inspect info", "dtrain checkpoint inspect"},
    {"diff", "dtrain checkpoint diff"},
    {"compare", "dtrain report RUN RUN for runs, dtrain checkpoint diff A B for checkpoints"},
    {"plot curves show", "dtrain report RUN"},
    {"export convert", "dtrain checkpoint export RUN FILE"},
    {"import", "dtrain checkpoint import"},
    {"sample infer inference predict chat", "dtrain generate --from RUN"},
    {"resume continue", "dtrain --run-dir RUN --resume auto"},
    {"finetune fine-tune", "dtrain --init-from RUN --data FILE"},
    {"eval validate test", "dtrain evaluate --from RUN --data FILE"},
    {"prepare preprocess tokenize", "dtrain data prepare"},
    {"fit pretrain run launch", "dtrain train"},
    {"ls", "dtrain checkpoint list RUN", "dtrain checkpoint"},
    {"rm remove delete", "rm -r RUN/checkpoints/step-N: a checkpoint is its folder",
     "dtrain checkpoint"}};

[[noreturn]] void refuse_subcommand(const CLI::App& app, const std::string& name) {
  const std::string path = base::command_path(app);
  std::vector<std::string> known;
  for (const CLI::App* each : base::subcommands_of(app)) known.push_back(each->get_name());
  if (name.empty()) {
    fail(ErrorKind::usage, "{} needs a subcommand: {}; {} --help explains them", path,
         fmt::join(known, ", "), path);
  }
  std::string advice;
  for (const OtherName& other : kOtherNames) {
    const bool is_it = fmt::format(" {} ", other.names).find(" " + name + " ") != std::string::npos;
    if (is_it && other.parent == path) advice = fmt::format(": use {}", other.use);
  }
  if (advice.empty()) advice = config::advice_for_word(name, Command::train);
  if (advice.empty()) advice = base::nearest_advice(name, known);
  fail(ErrorKind::usage, "unknown subcommand \"{}\"{}{}", name,
       path == "dtrain" ? "" : " of " + path,
       advice.empty() ? fmt::format("; {} --help lists them", path) : advice);
}

// The arguments that the parser did not recognise.
Arguments unparsed_arguments(const CLI::App& dtrain) {
  Arguments rest = dtrain.remaining(true);
  std::ranges::transform(rest, rest.begin(), base::as_typed);
  return rest;
}

void reject_unparsed(const CLI::App& dtrain, const Arguments& arguments) {
  const CLI::App& app = base::chosen_command(dtrain);
  Arguments rest = unparsed_arguments(dtrain);
  if (!rest.empty() && rest.front() == "--") rest.erase(rest.begin());
  if (!base::subcommands_of(app).empty()) {
    refuse_subcommand(app, rest.empty() ? "" : rest.front());
  }
  if (app.get_prefix_command()) {  // help takes any words; CLI11 drops this one
    if (std::ranges::count(arguments, "--") == 0) return;
    fail(ErrorKind::usage, "{}: unexpected word \"--\"; remove it", base::command_path(app));
  }
  if (rest.empty()) return;
  if (const auto* row = settings_command(base::command_path(app))) {
    config::reject_unknown_arguments(app, row->command, arguments);
  }
  const std::string& word = rest.front();
  const std::string advice = base::nearest_advice(word, base::flags_of(app));
  const std::string path = base::command_path(app);
  fail(ErrorKind::usage, "{}: {} {}{}", path,
       word.starts_with('-') ? "unknown flag" : "unexpected word", word,
       advice.empty() ? fmt::format("; {} --help shows the flags", path) : advice);
}

constexpr std::size_t kMinColumns = 40;  // narrower help has no room beside flags
constexpr std::size_t kMaxColumns = 100;

constexpr const char* kMostUsed[] = {
    "--data",  "--config", "--run-dir",      "--resume",   "--val-fraction",
    "--steps", "--lr",     "--global-batch", "--strategy", "--checkpoint-every"};

// Usage, the most used flags and the subcommands.
std::string overview(const CLI::App& dtrain, std::size_t columns) {
  std::string text = base::wrapped(
      dtrain.get_description() +
          "\n\n  dtrain [train] --data FILE [--config FILE] [--run-dir DIR] [flags]\n"
          "  dtrun -n 2 -- dtrain --strategy ddp --data FILE [flags]\n\nmost used flags\n",
      columns);
  const CLI::App* train = dtrain.get_subcommand("train");
  for (const char* flag : kMostUsed) {
    text += base::help_entry(*train->get_option(flag), columns);
  }
  return text + "\nsubcommands\n" + base::subcommands_help(dtrain, columns) + '\n';
}

// The line width of help: that of the terminal, within limits.
std::size_t help_columns(int descriptor) {
  winsize size{};
  const bool is_known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? std::clamp<std::size_t>(size.ws_col, kMinColumns, kMaxColumns) : kMaxColumns;
}

// Prints the help of a subcommand, once for all ranks. dtrain itself and train print the overview and
// all flags.
void print_help(const CLI::App& app) {
  const std::size_t columns = help_columns(STDOUT_FILENO);
  const CLI::App* parent = app.get_parent();
  const CLI::App& dtrain = parent == nullptr ? app : *parent;
  const bool is_overview = &dtrain == &app || app.get_name() == "train" || app.get_name() == "help";
  if (!is_overview || dtrain.get_parent() != nullptr) {
    const auto* row = settings_command(base::command_path(app));
    return print_once(base::help_of(app, columns, row == nullptr ? "" : row->usage));
  }
  print_once(overview(dtrain, columns) +
             base::flags_help(*dtrain.get_subcommand("train"), columns));
}

// Prints the overview to standard error, for `dtrain` without arguments.
void print_usage(const CLI::App& dtrain) {
  const std::size_t columns = help_columns(STDERR_FILENO);
  std::cerr << overview(dtrain, columns)
            << "dtrain --help lists all flags, dtrain help NAME explains one.\n"
            << std::flush;
}

int explain_setting(const CLI::App& dtrain, const std::string& name) {
  const std::size_t columns = help_columns(STDOUT_FILENO);
  const CLI::App& train = *dtrain.get_subcommand("train");
  const std::string flag = name.starts_with("--") ? name : "--" + name;
  const CLI::Option* option = train.get_option_no_throw(flag);
  if (option != nullptr && config::find_flag(flag) == nullptr) {  // --config, --quiet
    print_once(base::help_entry(*option, columns));
    return 0;
  }
  if (const auto text = config::setting_help(name, columns)) {
    print_once(*text);
    return 0;
  }
  std::vector<std::string> names;
  for (const config::Setting& setting : config::settings()) {
    names.emplace_back(setting.is_positional() ? setting.key : setting.flag.substr(2));
    names.emplace_back(setting.key);
  }
  for (const CLI::App* each : base::subcommands_of(dtrain)) names.push_back(each->get_name());
  const std::string advice = base::nearest_advice(name, names);
  fail(ErrorKind::usage, "unknown setting or subcommand \"{}\"{}", name,
       advice.empty() ? "; dtrain --help lists them" : advice);
}

// `dtrain help checkpoint export` prints the help of that subcommand, `dtrain help lr` explains a
// setting.
int run_help(const CLI::App& dtrain, const Arguments& names) {
  const CLI::App* app = &dtrain;
  for (const std::string& name : names) {
    const auto known = base::subcommands_of(*app);
    const auto next = std::ranges::find(known, name, &CLI::App::get_name);
    if (next == known.end()) {
      if (app == &dtrain) return explain_setting(dtrain, name);
      if (known.empty() || is_help(name)) break;
      refuse_subcommand(*app, name);
    }
    app = *next;
  }
  print_help(*app);
  return 0;
}

void add_plain(CLI::App& dtrain, const char* name, const char* description, Action& action,
               int (*run)()) {
  dtrain.add_subcommand(name, description)->callback([&action, run] { action = run; });
}

void add_commands(CLI::App& dtrain, Action& action) {
  base::set_up_parser(dtrain);
  add_command(dtrain, "train", action);
  CLI::App& data = *dtrain.add_subcommand(
      "data", "train tokenizers, make token files, compute n-gram baselines");
  add_data_tools(data, action);
  add_command(data, "baseline", action);
  for (const char* name : {"generate", "evaluate", "verify"}) add_command(dtrain, name, action);
  CLI::App& checkpoint = *dtrain.add_subcommand(
      "checkpoint", "list, inspect, verify, compare, export and import checkpoints");
  add_checkpoint_tools(checkpoint, action);
  for (const char* name : {"export", "import"}) add_command(checkpoint, name, action);
  for (const char* name : {"doctor", "plan"}) add_command(dtrain, name, action);
  add_report(dtrain, action);
  add_schedule(dtrain, action);
  add_completion(dtrain, action);
  add_plain(dtrain, "settings",
            "print docs/guide/settings.md: every setting with key, flag, default, unit, range and "
            "meaning",
            action, [] {
              print(config::settings_markdown());
              return 0;
            });
  CLI::App* help = dtrain.add_subcommand(
      "help", "show this, the flags of a subcommand, or a setting: dtrain help lr");
  help->prefix_command();  // accepts "--lr" as a name
  help->callback([&dtrain, &action] {
    action = [&dtrain] { return run_help(dtrain, unparsed_arguments(dtrain)); };
  });
  add_plain(dtrain, "version", "print version and commit, as --version does", action, [] {
    print_once(fmt::format("dtrain {}\n", version_text()));
    return 0;
  });
}

// Prepends the subcommand if the arguments omit it.
Arguments with_subcommand(Arguments arguments) {
  const std::string first = arguments.empty() ? "" : arguments[0];
  if (first == "--version" || first == "-V") return {"version"};
  const bool asks_for_help = is_help(first);
  if (asks_for_help) arguments.erase(arguments.begin());
  if (first.empty() || first.starts_with('-')) {
    arguments.insert(arguments.begin(), asks_for_help ? "help" : "train");
  }
  return arguments;
}

}  // namespace

int run(const Arguments& arguments) {
  CLI::App dtrain(
      "dtrain trains BDH, Llama and GPT-2 models, with one process or with many ranks under dtrun.",
      "dtrain");
  Action action;
  add_commands(dtrain, action);
  if (arguments.empty() && base::rank_env_of_process().world_size == 1) {
    print_usage(dtrain);
    return static_cast<int>(ErrorKind::usage);
  }
  const Arguments words = with_subcommand(arguments);
  try {
    base::parse_arguments(dtrain, words);
  } catch (const CLI::CallForHelp&) {
    print_help(base::chosen_command(dtrain));
    return 0;
  }
  reject_unparsed(dtrain, words);
  return action();
}

}  // namespace dtrain::app
