#include "help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <iterator>
#include <string_view>

#include "dtrain/base/arguments.h"
#include "ranks.h"

namespace dtrain::app {
namespace {

constexpr std::size_t kFewestColumns = 40;  // with less, texts beside flags have no room
constexpr std::size_t kMostColumns = 100;

constexpr const char* kMostUsed[] = {
    "--data",  "--config", "--run-dir",      "--resume",   "--val-fraction",
    "--steps", "--lr",     "--global-batch", "--strategy", "--checkpoint-every"};

// The first lines of a subcommand's help where some flags are the main ones, or where ranks run it.
struct UsageForm {
  std::string_view path;
  std::string_view text;
};

constexpr UsageForm kUsageForms[] = {
    {"dtrain generate", "dtrain generate --from RUN [--prompt TEXT | --prompt-file FILE] [flags]"},
    {"dtrain evaluate", "dtrain evaluate --from RUN --data FILE [--val-fraction F] [flags]"},
    {"dtrain verify",
     "dtrain verify --golden FIXTURE.safetensors [--trajectory FILE.json --name NAME] [flags]"},
    {"dtrain data baseline",
     "dtrain data baseline --data FILE [--val-fraction F | --val-data FILE] [flags of train]"},
    {"dtrain doctor",
     "dtrain doctor [flags of train]\ndtrun -n 2 -- dtrain doctor [flags of train]"},
    {"dtrain plan",
     "dtrain plan [flags of train] [--ranks N] [--device-memory SIZE] [--link SIZE]"}};

std::string_view usage_of(const CLI::App& app) {
  const auto* form = std::ranges::find(kUsageForms, base::command_path(app), &UsageForm::path);
  return form == std::end(kUsageForms) ? std::string_view() : form->text;
}

// Usage, the most used flags and the subcommands.
std::string beginning(const CLI::App& dtrain, std::size_t columns) {
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

}  // namespace

std::size_t help_columns(int descriptor) {
  winsize size{};
  const bool is_known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? std::clamp<std::size_t>(size.ws_col, kFewestColumns, kMostColumns)
                  : kMostColumns;
}

void print_help(const CLI::App& app) {
  const std::size_t columns = help_columns(STDOUT_FILENO);
  const CLI::App* parent = app.get_parent();
  const CLI::App& dtrain = parent == nullptr ? app : *parent;
  const bool is_overview = &dtrain == &app || app.get_name() == "train" || app.get_name() == "help";
  if (!is_overview || dtrain.get_parent() != nullptr) {
    return print_once(base::help_of(app, columns, usage_of(app)));
  }
  print_once(beginning(dtrain, columns) +
             base::flags_help(*dtrain.get_subcommand("train"), columns));
}

void print_usage(const CLI::App& dtrain) {
  const std::size_t columns = help_columns(STDERR_FILENO);
  std::cerr << beginning(dtrain, columns)
            << "dtrain --help lists all flags, dtrain help NAME explains one.\n"
            << std::flush;
}

}  // namespace dtrain::app
