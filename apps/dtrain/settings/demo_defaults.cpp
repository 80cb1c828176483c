// Demo defaults: flags for validation, checkpoints and samples.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/config/values/data_mixture.h"
#include "dtrain/data/split.h"
#include "settings/configure.h"
#include "settings/inherited_run.h"

namespace dtrain::app {
namespace {

// The smallest text, in bytes, whose held-out share is large enough to measure a loss.
constexpr std::uintmax_t kMinBytesToHoldOut = 100'000;
constexpr double kValFraction = 0.05;

// The default of --val-fraction; a resumed run keeps its own, since its training data must not change.
double default_val_fraction(const config::Config& config) {
  if (const std::string path = config::resumed_config_file(config); !path.empty()) {
    try {
      return config::read_saved_run(path).resolved.data.val_fraction;
    } catch (const base::Error&) {
      return 0;  // the start reports the error
    }
  }
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(config.data.train, error);
  return !error && bytes >= kMinBytesToHoldOut ? kValFraction : 0;
}

// An assignment that acts as if the flag were given.
config::Assignment flag(std::string_view key, std::string text) {
  const config::Setting* setting = config::find_key(key);
  return {setting, std::move(text), std::string(setting->flag)};
}

using Flags = std::vector<config::Assignment>;

Flags validation_flags(const config::LoadedSettings& loaded) {
  const config::DataConfig& data = loaded.config.data;
  Flags flags;
  bool evaluates = !data.validation.empty() || data.val_fraction > 0;
  if (!loaded.gives("data.validation") && !loaded.gives("data.val_fraction")) {
    const double share = default_val_fraction(loaded.config);
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

// The line about demo defaults that a --config file and the flags lack; empty if they lack none.
std::string missing_flags_note(const config::CommandLine& command_line,
                               const config::LoadedSettings& loaded, const Flags& flags) {
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

// True if samples should be enabled. They need extra memory, which may exceed --memory-limit.
bool needs_samples(const config::LoadedSettings& loaded) {
  const config::Config& config = loaded.config;
  return !loaded.gives("report.sample_every") && config.machine.memory_limit.count == 0 &&
         data::has_tokenizer(config.data.train);
}

// Explains missing validation, for a mixture or a short text; otherwise empty.
std::string_view validation_note(const config::LoadedSettings& loaded, const Flags& flags) {
  const bool is_given =
      loaded.gives("data.validation") || loaded.gives("data.val_fraction") ||
      std::ranges::count(flags, "--val-fraction", &config::Assignment::origin) > 0;
  if (is_given) return {};
  return config::parse_mixture(loaded.config.data.train).size() > 1
             ? "; no validation without --val-data FILE"
             : "; no validation without --val-fraction F or --val-data FILE";
}

}  // namespace

std::string add_demo_defaults(config::CommandLine& command_line) {
  const config::LoadedSettings loaded = config::load(command_line);
  // A command that resumes or forks a run inherits the run's settings.
  const bool is_fork = loaded.config.checkpoint.resume.kind == config::Resume::Kind::path;
  if (loaded.config.data.train.empty() || is_fork) return {};
  if (resumes_own_run(command_line, loaded.config)) return {};
  Flags flags = validation_flags(loaded);
  if (!loaded.gives("checkpoint.every")) flags.push_back(flag("checkpoint.every", "100"));
  if (!command_line.config_file.empty()) return missing_flags_note(command_line, loaded, flags);
  if (needs_samples(loaded)) flags.push_back(flag("report.sample_every", "200"));
  if (flags.empty()) return {};
  command_line.assignments.insert(command_line.assignments.begin(), flags.begin(), flags.end());
  return fmt::format("using demo defaults: {}; pass any of these flags to override it{}",
                     flags_text(flags), validation_note(loaded, flags));
}

}  // namespace dtrain::app
