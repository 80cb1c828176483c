#include "commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/base/nearest.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/config/help.h"
#include "dtrain/config/unknown_word.h"
#include "fitted_text.h"
#include "help.h"
#include "provenance.h"
#include "ranks.h"

namespace dtrain::app {
namespace {

int print_version() {
  print_once(fmt::format("dtrain {}\n", version_text()));
  return 0;
}

int run_settings(const Arguments& arguments) {
  if (!arguments.empty() && is_help(arguments[0])) {
    print_help(settings_help());
    return 0;
  }
  if (!arguments.empty()) {
    base::fail(base::ErrorKind::usage, "dtrain settings takes no arguments; found {}",
               arguments[0]);
  }
  print(config::settings_markdown());
  return 0;
}

struct Subcommand {
  std::string_view name;
  int (*run)(const Arguments&);
};

constexpr Subcommand kSubcommands[] = {
    {"train", run_train},           {"data", run_data},         {"generate", run_generate},
    {"evaluate", run_evaluate},     {"verify", run_verify},     {"checkpoint", run_checkpoint},
    {"doctor", run_doctor},         {"plan", run_plan},         {"report", run_report},
    {"completion", run_completion}, {"schedule", run_schedule}, {"settings", run_settings}};

// Subcommand names of other programs.
struct OtherName {
  std::string_view names;  // separated by spaces
  std::string_view use;
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
    {"fit pretrain run launch", "dtrain train"}};

std::string advice_for_other_name(const std::string& name) {
  for (const OtherName& other : kOtherNames) {
    if (fmt::format(" {} ", other.names).find(fmt::format(" {} ", name)) == std::string::npos)
      continue;
    return fmt::format(": use {}", other.use);
  }
  return {};
}

bool is_subcommand(std::string_view name) {
  return std::ranges::find(kSubcommands, name, &Subcommand::name) != std::end(kSubcommands);
}

int run_help(const Arguments& arguments);

int run_named(const std::string& name, const Arguments& arguments) {
  if (name == "help") return run_help(arguments);
  if (name == "version") return print_version();
  std::vector<std::string_view> names = {"help"};
  for (const Subcommand& subcommand : kSubcommands) {
    if (subcommand.name == name) return subcommand.run(arguments);
    names.push_back(subcommand.name);
  }
  std::string advice = advice_for_other_name(name);
  if (advice.empty()) advice = config::advice_for_word(name, config::Command::train);
  if (advice.empty()) advice = base::did_you_mean(base::nearest(name, names));
  base::fail(base::ErrorKind::usage, "unknown subcommand \"{}\"{}", name,
             advice.empty() ? "; dtrain --help lists them" : advice);
}

int explain_setting(const std::string& name) {
  if (const auto text = config::setting_help(name)) {
    print_help(*text);
    return 0;
  }
  std::vector<std::string_view> names = config::setting_names();
  for (const Subcommand& subcommand : kSubcommands) names.push_back(subcommand.name);
  const std::string advice = base::did_you_mean(base::nearest(name, names));
  base::fail(base::ErrorKind::usage, "unknown setting or subcommand \"{}\"{}", name,
             advice.empty() ? "; dtrain --help lists them" : advice);
}

// `dtrain help checkpoint export` is `dtrain checkpoint export --help`, `dtrain help lr` explains a
// setting.
int run_help(const Arguments& arguments) {
  if (arguments.empty() || is_help(arguments[0]) || arguments[0] == "help") {
    print_help(overview_help());
    return 0;
  }
  if (!is_subcommand(arguments[0])) return explain_setting(arguments[0]);
  Arguments rest(arguments.begin() + 1, arguments.end());
  rest.emplace_back("--help");
  return run_named(arguments[0], rest);
}

}  // namespace

int run(const Arguments& arguments) {
  const std::string first = arguments.empty() ? "" : arguments[0];
  if (first == "--version" || first == "-V") return print_version();
  if (is_help(first)) return run_help({arguments.begin() + 1, arguments.end()});
  if (arguments.empty() && base::rank_env_of_process().world_size == 1) {
    print_usage(usage_help());
    return static_cast<int>(base::ErrorKind::usage);
  }
  if (arguments.empty() || first.starts_with('-')) return run_train(arguments);
  return run_named(first, {arguments.begin() + 1, arguments.end()});
}

}  // namespace dtrain::app
