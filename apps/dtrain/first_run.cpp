#include "first_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/config/command_line.h"
#include "dtrain/config/data_mixture.h"
#include "dtrain/config/resumed_run.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/data/split.h"
#include "inherited_run.h"

namespace dtrain::app {
namespace {

// A twentieth of a text of so many bytes is enough to measure a loss on.
constexpr std::uintmax_t kLeastToHoldOut = 100'000;
constexpr double kShareToHoldOut = 0.05;

bool is_given(const config::Loaded& loaded, std::string_view key) {
  return std::ranges::any_of(loaded.given,
                             [&](const auto* setting) { return setting->key == key; });
}

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

Arguments validation_flags(const config::Loaded& loaded) {
  const config::DataConfig& data = loaded.config.data;
  Arguments flags;
  bool evaluates = !data.validation.empty() || data.val_fraction > 0;
  if (!is_given(loaded, "data.validation") && !is_given(loaded, "data.val_fraction")) {
    const double share = share_to_hold_out(loaded.config);
    evaluates = share > 0;
    if (evaluates) flags = {"--val-fraction", fmt::format("{}", share)};
  }
  if (evaluates && !is_given(loaded, "report.eval_every")) {
    flags.insert(flags.end(), {"--eval-every", "100"});
  }
  return flags;
}

Arguments saving_flags(const config::Loaded& loaded) {
  if (is_given(loaded, "checkpoint.every")) return {};
  return {"--checkpoint-every", "100"};
}

// Sampling takes extra memory, which may exceed --memory-limit.
Arguments sample_flags(const config::Loaded& loaded) {
  const config::Config& config = loaded.config;
  if (is_given(loaded, "report.sample_every") || config.machine.memory_limit.count > 0 ||
      !data::has_tokenizer(config.data.train)) {
    return {};
  }
  return {"--sample-every", "200"};
}

// True for a mixture or a short text, of which nothing is held out.
bool lacks_validation(const config::Loaded& loaded, const Arguments& flags) {
  return !is_given(loaded, "data.validation") && !is_given(loaded, "data.val_fraction") &&
         std::ranges::find(flags, "--val-fraction") == flags.end();
}

void append(Arguments& all, const Arguments& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

DemoDefaults with_demo_defaults(config::Command command, const Arguments& arguments) {
  const auto command_line = config::parse_command_line(command, arguments);
  DemoDefaults found{.arguments = arguments};
  if (command_line.help) return found;
  const config::Loaded loaded = config::load(command_line);
  // Both a fork and a continued run have the settings of the run that they resume.
  const bool is_fork = loaded.config.checkpoint.resume.kind == config::Resume::Kind::path;
  if (loaded.config.data.train.empty() || is_fork) return found;
  if (resumes_own_run(command_line, loaded.config)) return found;
  Arguments flags = validation_flags(loaded);
  append(flags, saving_flags(loaded));
  if (!command_line.config_file.empty()) {
    if (flags.empty()) return found;
    found.notice = fmt::format("{} sets no validation or saving: add {} for the demo defaults",
                               command_line.config_file, fmt::join(flags, " "));
    return found;
  }
  append(flags, sample_flags(loaded));
  if (flags.empty()) return found;
  found.arguments.insert(found.arguments.begin(), flags.begin(), flags.end());
  found.notice = fmt::format("using demo defaults: {}; pass any of these flags to override it{}",
                             fmt::join(flags, " "),
                             !lacks_validation(loaded, flags) ? ""
                             : config::parse_mixture(loaded.config.data.train).size() > 1
                                 ? "; no validation without --val-data FILE"
                                 : "; no validation without --val-fraction F or --val-data FILE");
  return found;
}

}  // namespace dtrain::app
