#include "settings/matched_sizes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/config/family.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/match.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/data/split.h"
#include "settings/inherited_run.h"
#include "settings/model_path.h"

namespace dtrain::app {
namespace {

using base::ErrorKind;
using config::Config;
using config::MatchBy;

/// The model of --match.
struct MatchedModel {
  Config config;
  bool is_trained = false;  ///< a run's: config is its resolved configuration
  bool has_seq_len = false;
  bool has_vocab = false;
};

MatchedModel read_matched_run(const std::string& folder) {
  const std::string file = config_file_in(folder);
  const std::string resolved =
      base::path_exists(file) ? config::json_value_in_file(file, config::kResolvedKey) : "";
  if (resolved.empty()) {
    base::fail(ErrorKind::usage, "'{}' is not a run folder: name one, or a configuration file",
               folder);
  }
  MatchedModel matched{.config = {}, .is_trained = true, .has_seq_len = true, .has_vocab = true};
  config::apply_saved_settings(resolved, fmt::format("{}: {}", file, config::kResolvedKey),
                               matched.config);
  return matched;
}

MatchedModel read_matched_file(const std::string& path) {
  config::LoadedSettings file;
  config::apply_file(path, config::Command::train, file);
  return {.config = file.config,
          .has_seq_len = file.gives("data.seq_len"),
          .has_vocab = file.gives("model.vocab")};
}

MatchedModel read_matched(const std::string& path) {
  MatchedModel matched;
  open_for("--match", [&] {
    if (!base::path_exists(path)) {
      base::fail(ErrorKind::usage,
                 "no such file or folder '{}': name a run folder or a configuration file", path);
    }
    matched = base::is_folder(path) ? read_matched_run(path) : read_matched_file(path);
    config::family_of(matched.config.model).check(matched.config.model);
  });
  return matched;
}

// Sets the sequence length and vocabulary to those of `source` unless flags, files or the data
// determine them.
void take_data_sizes(const Config& source, config::LoadedSettings& loaded) {
  Config& config = loaded.config;
  if (!loaded.gives("data.seq_len")) config.data.seq_len = source.data.seq_len;
  const std::string& data = config.data.train;
  const bool has_vocab =
      loaded.gives("model.vocab") || (!data.empty() && data::vocab_of_data(data).has_value());
  if (!has_vocab) config.model.vocab = source.model.vocab;
}

// Resolves what a count depends on besides sizes. A plan's layouts are not this launch's.
void resolve_for_count(MatchBy by, config::Command command, const config::Launch& launch,
                       Config& config) {
  const bool depends =
      by == MatchBy::flops && config::family_of(config.model).attention_chunk != nullptr;
  if (!depends) return;
  if (command == config::Command::plan) config.layout = {};
  (void)config::resolve_computation(config, launch);
}

// The number of parameters or FLOPs of the matched model. The model of a file is counted as this
// command would train it. own: the command's configuration.
double count_of_matched(const MatchedModel& matched, MatchBy by, config::Command command,
                        const config::Launch& launch, const Config& own) {
  if (matched.is_trained) return config::count_of(by, matched.config);
  Config config = own;
  config.model = matched.config.model;
  if (matched.has_seq_len) config.data.seq_len = matched.config.data.seq_len;
  if (!matched.has_vocab) config.model.vocab = own.model.vocab;
  resolve_for_count(by, command, launch, config);
  return config::count_of(by, config);
}

// Keys of the sizes that --match chooses, in the order in which they are displayed.
std::vector<std::string_view> size_keys(const config::ModelConfig& model) {
  return {"model.layers", "model.width", "model.heads", config::family_of(model).sizing.tuned_key};
}

// "--layers 4 --width 88"
std::string sizes_text(const std::vector<std::string_view>& keys, const Config& config) {
  std::vector<std::string> flags;
  for (const std::string_view key : keys) {
    const config::Setting& setting = *config::find_key(key);
    flags.push_back(fmt::format("{} {}", setting.flag, config::value_text(setting, config)));
  }
  return fmt::format("{}", fmt::join(flags, " "));
}

// "423192 parameters"
std::string count_text(MatchBy by, double count) {
  return fmt::format("{:.0f} {}", count,
                     by == MatchBy::parameters ? "parameters" : "FLOPs per token");
}

// Rejects a request without a match. sizes: the nearest ones, as flags.
[[noreturn]] void refuse_nearest(const std::string& path, const config::SizeRequest& request,
                                 const config::SizedModel& nearest, const std::string& sizes) {
  const std::string fixed = sizes_text(request.fixed, request.config);
  base::fail(ErrorKind::usage,
             "--match {}: no sizes{}{} are within {:g}% of its {}; the nearest, {}, have {} "
             "({:+.1f}%); {}",
             path, fixed.empty() ? "" : " with ", fixed, 100 * config::kMatchTolerance,
             count_text(request.by, request.count), sizes, count_text(request.by, nearest.count),
             100 * nearest.difference,
             fixed.empty() ? "give the sizes as flags instead" : "change or omit these flags");
}

// Sets the sizes that are not flags to those of `run`.
void keep_sizes(const std::string& run, const config::CommandLine& command_line,
                config::LoadedSettings& loaded) {
  const Config saved = config::read_saved_run(config_file_in(run)).resolved;
  for (const std::string_view key : size_keys(loaded.config.model)) {
    if (command_line.gives(key)) continue;
    const config::Setting& setting = *config::find_key(key);
    config::assign_text(setting, config::value_text(setting, saved), key, loaded.config);
  }
  take_data_sizes(saved, loaded);
}

}  // namespace

void check_match(const config::CommandLine& command_line, const Config& given) {
  const config::CheckpointConfig& start = given.checkpoint;
  const bool is_fork = start.resume.kind == config::Resume::Kind::path;
  if (command_line.match.empty() || (!is_fork && start.init_from.empty())) return;
  base::fail(ErrorKind::usage,
             "--match {} and {} {} exclude each other: the weights have their sizes; omit one of "
             "them",
             command_line.match, is_fork ? "--resume" : "--init-from",
             is_fork ? start.resume.path : start.init_from);
}

std::string adopt_matched_sizes(const config::CommandLine& command_line,
                                const config::Launch& launch, const base::RankEnv& env,
                                config::LoadedSettings& loaded) {
  const std::string& path = command_line.match;
  if (path.empty()) return {};
  Config& config = loaded.config;
  if (const auto begun = begun_run(config, env)) {  // it has these sizes already
    keep_sizes(begun->run_dir, command_line, loaded);
    return fmt::format("--match {} keeps the sizes of {}", path, begun->run_dir);
  }
  const MatchedModel matched = read_matched(path);
  take_data_sizes(matched.config, loaded);
  if (!command_line.gives("model.layers")) config.model.layers = matched.config.model.layers;
  if (!command_line.gives("model.heads")) config.model.heads = matched.config.model.heads;
  const MatchBy by = command_line.match_by.value_or(MatchBy::parameters);
  config::SizeRequest request{
      .config = config,
      .by = by,
      .count = count_of_matched(matched, by, command_line.command, launch, config)};
  resolve_for_count(by, command_line.command, launch, request.config);
  const std::vector<std::string_view> keys = size_keys(config.model);
  std::ranges::copy_if(keys, std::back_inserter(request.fixed),
                       [&](std::string_view key) { return command_line.gives(key); });
  const config::SizedModel sized = config::match_sizes(request);
  config.model = sized.model;
  if (!sized.is_match()) refuse_nearest(path, request, sized, sizes_text(keys, config));
  return fmt::format("--match {} chose {}: {}, {:+.2f}% compared with its {}", path,
                     sizes_text(keys, config), count_text(by, sized.count), 100 * sized.difference,
                     count_text(by, request.count));
}

}  // namespace dtrain::app
