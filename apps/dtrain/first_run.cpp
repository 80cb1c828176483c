// Default flags for validation, saving and samples of a command that gives --data alone.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "configure.h"
#include "dtrain/base/error.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/config/values/data_mixture.h"
#include "dtrain/data/split.h"
#include "inherited_run.h"

namespace dtrain::app {
namespace {

// A twentieth of a text of so many bytes is enough to measure a loss on.
constexpr std::uintmax_t kLeastToHoldOut = 100'000;
constexpr double kShareToHoldOut = 0.05;

// A resumed run cannot change its training data.
double share_to_hold_out(const config::Config& config) {
  if (const std::string path = config::resumed_config_file(config); !path.empty()) {
    try {
      return config::read_saved_run(path).resolved.data.val_fraction;
    } catch (const base::Error&) {
      return 0;  // the start reports what is wrong with the file
    }
  }
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(config.data.train, error);
  return !error && bytes >= kLeastToHoldOut ? kShareToHoldOut : 0;
}

// A default, as if its flag were given.
config::Assignment flag(std::string_view key, std::string text) {
  const config::Setting* setting = config::find_key(key);
  return {setting, std::move(text), std::string(setting->flag)};
}

using Flags = std::vector<config::Assignment>;

Flags validation_flags(const config::Loaded& loaded) {
  const config::DataConfig& data = loaded.config.data;
  Flags flags;
  bool evaluates = !data.validation.empty() || data.val_fraction > 0;
  if (!loaded.gives("data.validation") && !loaded.gives("data.val_fraction")) {
    const double share = share_to_hold_out(loaded.config);
    evaluates = share > 0;
    if (evaluates) flags.push_back(flag("data.val_fraction", fmt::format("{}", share)));
  }
  if (evaluates && !loaded.gives("report.eval_every")) {
    flags.push_back(flag("report.eval_every", "100"));
  }
  return flags;
}

std::string flags_text(const Flags& flags) {
  std::string text;
  for (const config::Assignment& each : flags) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " ", each.origin, each.text);
  }
  return text;
}

// The note about flags that a configuration file and the flags lack; empty: they have them.
std::string missing_flags_note(const config::CommandLine& command_line,
                               const config::Loaded& loaded, const Flags& flags) {
  const bool validates = loaded.gives("data.validation") || loaded.gives("data.val_fraction");
  Flags missing;
  std::string what;
  for (const config::Assignment& each : flags) {
    const bool saves = each.setting->key == "checkpoint.every";
    if (!saves && validates) continue;
    const std::string_view name = saves ? "saving" : "validation";
    if (what.find(name) == what.npos) what += fmt::format("{}{}", what.empty() ? "" : " or ", name);
    missing.push_back(each);
  }
  if (missing.empty()) return {};
  return fmt::format("{} sets no {}: add {} for the demo defaults", command_line.config_file, what,
                     flags_text(missing));
}

// Sampling takes extra memory, which may exceed --memory-limit.
bool lacks_samples(const config::Loaded& loaded) {
  const config::Config& config = loaded.config;
  return !loaded.gives("report.sample_every") && config.machine.memory_limit.count == 0 &&
         data::has_tokenizer(config.data.train);
}

// Empty unless nothing is held out of a mixture or a short text.
std::string_view validation_note(const config::Loaded& loaded, const Flags& flags) {
  const bool is_given =
      loaded.gives("data.validation") || loaded.gives("data.val_fraction") ||
      std::ranges::count(flags, "--val-fraction", &config::Assignment::origin) > 0;
  if (is_given) return {};
  return config::parse_mixture(loaded.config.data.train).size() > 1
             ? "; no validation without --val-data FILE"
             : "; no validation without --val-fraction F or --val-data FILE";
}

}  // namespace

std::string take_demo_defaults(config::CommandLine& command_line) {
  const config::Loaded loaded = config::load(command_line);
  // Both a fork and a continued run have the settings of the run that they resume.
  const bool is_fork = loaded.config.checkpoint.resume.kind == config::Resume::Kind::path;
  if (loaded.config.data.train.empty() || is_fork) return {};
  if (resumes_own_run(command_line, loaded.config)) return {};
  Flags flags = validation_flags(loaded);
  if (!loaded.gives("checkpoint.every")) flags.push_back(flag("checkpoint.every", "100"));
  if (!command_line.config_file.empty()) return missing_flags_note(command_line, loaded, flags);
  if (lacks_samples(loaded)) flags.push_back(flag("report.sample_every", "200"));
  if (flags.empty()) return {};
  command_line.assignments.insert(command_line.assignments.begin(), flags.begin(), flags.end());
  return fmt::format("using demo defaults: {}; pass any of these flags to override it{}",
                     flags_text(flags), validation_note(loaded, flags));
}

}  // namespace dtrain::app
