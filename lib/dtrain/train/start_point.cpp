#include "dtrain/train/start_point.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/choose.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/checkpoint/store/commit.h"
#include "dtrain/checkpoint/store/earlier_attempt.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/input/file.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/train/internal/setting_changes.h"
#include "dtrain/train/model_file.h"

namespace dtrain::train {
namespace {

namespace store = checkpoint::store;
using base::ErrorKind;
using checkpoint::VerifiedCheckpoint;

bool is_leader(const StartContext& context) { return context.world.rank() == 0; }

// Returns what rank 0 finds at a path: another job may be writing there, and file systems do not show
// all machines the same at the same time.
std::string ask_leader(const StartContext& context, const std::function<std::string()>& look) {
  return comm::leader_text(context.world, "looking for a checkpoint", look);
}

bool leader_sees(const StartContext& context, const std::function<bool()>& look) {
  return !ask_leader(context, [&] { return std::string(look() ? "yes" : ""); }).empty();
}

std::optional<VerifiedCheckpoint> choose_newest(const StartContext& context,
                                                const std::string& checkpoints) {
  const auto notice = [](std::string_view text) { base::log_warning("{}", text); };
  const std::string earlier = ask_leader(context, [&] {
    const std::string path = base::parent_folder(checkpoints) + "/config.json";
    return base::path_exists(path)
               ? config::json_value_in_file(path, config::kSkippedCheckpointsKey)
               : "";
  });
  return checkpoint::choose_newest(context.world, checkpoints,
                                   context.config.checkpoint.strict_resume, notice,
                                   config::skipped_checkpoints_in(earlier));
}

std::optional<VerifiedCheckpoint> find_checkpoint(const StartContext& context) {
  const config::Config& config = context.config;
  const config::Resume& resume = config.checkpoint.resume;
  const std::string& from = resume.path;
  if (resume.is_none()) return std::nullopt;
  if (resume.is_automatic()) {
    return choose_newest(context, store::checkpoints_folder(config.run.dir));
  }
  const std::string folder = ask_leader(context, [&] {
    const std::string checkpoints = store::checkpoints_folder(from);
    return base::is_folder(checkpoints) ? checkpoints : std::string();
  });
  if (folder.empty()) return checkpoint::verify_checkpoint(context.world, from);
  auto chosen = choose_newest(context, folder);
  if (!chosen) base::fail(ErrorKind::checkpoint, "--resume {}: the run has no checkpoint", from);
  return chosen;
}

// Refuses to repeat committed steps, unless the committed checkpoint was skipped by name, now or by an
// attempt that quarantined it and then failed.
void check_covers_committed(const StartContext& context,
                            const std::optional<VerifiedCheckpoint>& chosen) {
  const std::int64_t found = chosen ? chosen->manifest.step : -1;
  if (found >= context.committed_step) return;
  const std::int64_t committed = context.committed_step;
  if (chosen && std::ranges::find(chosen->steps, committed) != chosen->steps.end()) return;
  const std::string checkpoints = store::checkpoints_folder(context.config.run.dir);
  const auto is_quarantined = [&] { return store::is_quarantined(checkpoints, committed); };
  if (!chosen || !leader_sees(context, is_quarantined))
    store::refuse_rollback(context.config.run.dir, found, committed);
}

config::Config config_of(const VerifiedCheckpoint& chosen) {
  try {
    return config::from_json(chosen.manifest.config);
  } catch (const base::Error& error) {
    base::fail(ErrorKind::checkpoint, "checkpoint '{}': bad configuration: {}", chosen.path,
               error.what());
  }
}

// The number of samples, with which every identity begins.
std::string_view count_of(std::string_view identity) {
  return identity.substr(0, identity.find(' '));
}

// True if both runs have validation data and it differs; an empty identity is unknown.
bool is_other_validation(const std::string& saved, const std::string& now) {
  return !saved.empty() && saved != "none" && now != "none" && saved != now;
}

// Data of the checkpoint or of this run. file: empty for a fraction of the training data.
struct DataSource {
  const std::string& file;
  const std::string& identity;
};

[[noreturn]] void refuse_data(const VerifiedCheckpoint& chosen, std::string_view key,
                              const DataSource& saved, const DataSource& now,
                              std::string_view advice) {
  base::fail(ErrorKind::usage,
             "cannot resume from {}: {} ({}) differs from the checkpoint's data: it has {}, the "
             "checkpoint {}; give the file as it was, {}or --init-from to take the weights alone",
             chosen.path, key, now.file, now.identity, saved.identity, advice);
}

std::string data_text(const DataSource& source, std::string_view content) {
  return fmt::format("{}{}{}", source.file, source.file.empty() ? "" : ": ", content);
}

// Shows checksums only if files and numbers of samples are equal.
SettingChange data_change(const std::string& key, const DataSource& saved, const DataSource& now) {
  const auto brief = [](const DataSource& source) {
    if (source.identity == "none") return source.identity;
    if (source.identity.starts_with("mixture")) return source.file;  // with weights
    return data_text(source, fmt::format("{} samples", count_of(source.identity)));
  };
  SettingChange change{.name = key, .saved = brief(saved), .now = brief(now)};
  if (change.saved == change.now) {
    change.saved = data_text(saved, saved.identity);
    change.now = data_text(now, now.identity);
  }
  return change;
}

// An older dtrain kept no checksum; then an equal number of samples suffices.
bool may_be_same_data(const StartContext& context, const VerifiedCheckpoint& chosen) {
  const data::DataIdentity saved = data::identity_from(chosen.manifest.data_fingerprint);
  const bool is_unknown = data::is_without_checksum(saved.training) &&
                          count_of(saved.training) == count_of(context.data.training);
  if (is_unknown && is_leader(context)) {
    base::log_warning(
        "{} was written by an older dtrain, which kept no checksum of its data: {} has the same "
        "number of samples, but may be other data",
        chosen.path, context.config.data.train);
  }
  return is_unknown;
}

// Returns the data that differs. Without new data, only adding or removing validation data is allowed;
// other changes are refused.
std::vector<SettingChange> data_changes(const StartContext& context,
                                        const VerifiedCheckpoint& chosen,
                                        const config::Config& saved_config, bool has_new_data) {
  const data::DataIdentity& now = context.data;
  const config::DataConfig& config = context.config.data;
  const config::DataConfig& before = saved_config.data;
  const data::DataIdentity saved = data::identity_from(chosen.manifest.data_fingerprint);
  if (!has_new_data && may_be_same_data(context, chosen)) return {};
  constexpr std::string_view kAdvice =
      "--new-data to start it from its first sample with the checkpoint's model and optimizer, ";
  std::vector<SettingChange> changes;
  if (saved.training != now.training) {
    const DataSource saved_source{before.train, saved.training};
    const DataSource own_source{config.train, now.training};
    if (!has_new_data) refuse_data(chosen, "data.train", saved_source, own_source, kAdvice);
    changes.push_back(data_change("data.train", saved_source, own_source));
  }
  if (saved.validation != now.validation) {
    const DataSource saved_source{before.validation, saved.validation};
    const DataSource own_source{config.validation, now.validation};
    if (!has_new_data && is_other_validation(saved.validation, now.validation)) {
      refuse_data(chosen, "data.validation", saved_source, own_source, kAdvice);
    }
    changes.push_back(data_change("data.validation", saved_source, own_source));
  }
  return changes;
}

// True if the run begins new data at its first sample. False without new data, or if the run has
// begun it already: then the command restarts that run.
bool begins_data(const StartContext& context, const VerifiedCheckpoint& chosen,
                 const config::Config& saved, const RunHistory& history) {
  const config::Config& config = context.config;
  if (!config.checkpoint.new_data) return false;
  const auto is_of_data = [](const SettingChange& change) {
    return change.rule == config::OnResume::needs_new_data;
  };
  const data::DataIdentity before = data::identity_from(chosen.manifest.data_fingerprint);
  const bool differs = before.training != context.data.training ||
                       is_other_validation(before.validation, context.data.validation) ||
                       std::ranges::any_of(setting_changes(config, saved), is_of_data);
  if (differs) return true;
  const bool is_restart = config.checkpoint.resume.is_automatic() && history.data_step > 0;
  if (!is_restart) {
    base::fail(ErrorKind::usage,
               "--new-data: the data is not new: --data {}, --val-data, --val-fraction, "
               "--global-batch, --seq-len and --seed equal those of checkpoint {}; change one of "
               "them, or omit --new-data to continue with the checkpoint's data",
               config.data.train, chosen.path);
  }
  if (is_leader(context) && !context.is_quiet) {
    base::log_info("--new-data: the run began this data after step {} and continues with it",
                   history.data_step);
  }
  return false;
}

// --epochs is converted to steps from step 0 on.
void check_epochs(const config::TrainConfig& train, const VerifiedCheckpoint& chosen,
                  std::int64_t data_step) {
  if (train.epochs == 0 || data_step == 0) return;
  base::fail(ErrorKind::usage,
             "cannot resume from {} with --epochs {}, which counts from step 0: this data begins "
             "after step {}; give --steps",
             chosen.path, train.epochs, data_step);
}

// Refuses --steps below the checkpoint's step: config.json would claim too few steps.
void check_reachable_end(const VerifiedCheckpoint& chosen, std::int64_t steps) {
  const std::int64_t step = chosen.manifest.step;
  if (step <= steps) return;
  base::fail(ErrorKind::usage,
             "cannot resume from {}: the run is already at step {}, beyond --steps {}; give more "
             "than {} steps to train it further, or fork it: --resume with an earlier checkpoint, "
             "and a new --run-dir",
             chosen.path, step, steps, step);
}

// An older build may have summed in another order, whose bits no setting reproduces.
void check_rounding(const StartContext& context, const VerifiedCheckpoint& chosen) {
  const std::string lost = config::removed_rounding_setting(chosen.manifest.config, chosen.path);
  if (lost.empty()) return;
  if (context.config.checkpoint.strict_resume) {
    base::fail(
        ErrorKind::checkpoint,
        "cannot resume from {} with --strict-resume: it was trained with {}, which dtrain no "
        "longer has, and sums are rounded differently without it; omit --strict-resume to resume "
        "anyway",
        chosen.path, lost);
  }
  if (!is_leader(context)) return;
  base::log_warning(
      "resuming from {}, which was trained with {}: dtrain no longer has it, and sums are rounded "
      "differently from here on",
      chosen.path, lost);
}

// Shows one table of all differences: a warning if results change, otherwise a note.
void report_changes(const StartContext& context, const VerifiedCheckpoint& chosen,
                    const std::vector<SettingChange>& changes, bool has_new_data) {
  const bool is_warning = changes_results(changes);
  if (changes.empty() || !is_leader(context) || (context.is_quiet && !is_warning)) return;
  base::log_info("{}resuming from {} with changed settings{}:\n{}", is_warning ? "warning: " : "",
                 chosen.path, has_new_data ? ", the data from its first sample on" : "",
                 table_of(changes));
}

void check_same_run(const StartContext& context, const VerifiedCheckpoint& chosen,
                    const config::Config& saved, bool has_new_data) {
  std::vector<SettingChange> changes = setting_changes(context.config, saved);
  if (const Refusal refusal = refusal_of(changes, has_new_data); !refusal.changes.empty()) {
    base::fail(
        ErrorKind::usage,
        "cannot resume from {}: {}; give the checkpoint's values, {}or --init-from to take only "
        "its weights",
        chosen.path, refusal.changes,
        refusal.needs_new_data ? "--new-data to start the data from its first sample, " : "");
  }
  const auto of_data = data_changes(context, chosen, saved, has_new_data);
  check_rounding(context, chosen);
  const auto rate = rate_change(context.config.train, saved.train, chosen.manifest.step);
  changes.insert(changes.begin(), rate.begin(), rate.end());
  changes.insert(changes.end(), of_data.begin(), of_data.end());
  report_changes(context, chosen, changes, has_new_data);
}

// flag: names the option that gave the model.
void check_tokenizer(const StartContext& context, std::string_view flag,
                     const std::string& weights) {
  const config::Config& config = context.config;
  const std::string mismatch = ask_leader(context, [&] {
    return check_tokenizer_of_data({.flag = std::string(flag),
                                    .weights = weights,
                                    .vocab = config.model.vocab,
                                    .data = fmt::format("data.train ({})", config.data.train),
                                    .tokenizer = context.tokenizer});
  });
  if (!mismatch.empty()) base::fail(ErrorKind::data, "{}", mismatch);
}

// Drops a record whose losses are of other sequences, since they cannot be compared. A launch without
// validation keeps the record for a later one.
void drop_incomparable_record(ValidationRecord& record, const StartContext& context,
                              const VerifiedCheckpoint& chosen, const config::Config& saved) {
  const std::string data = evaluation_data(context.data, context.config);
  if (record.best_step < 0 || data.empty()) return;
  const bool is_comparable = record.data.empty() ? saved.report.eval_sequences.count ==
                                                       context.config.report.eval_sequences.count
                                                 : record.data == data;
  if (is_comparable) {
    record.data = data;
    return;
  }
  if (is_leader(context)) {
    base::log_warning(
        "{}: its lowest validation loss, at step {}, was measured on different sequences ({}) from "
        "those of this launch ({}): the loss is discarded, and --patience starts counting again",
        chosen.path, record.best_step, record.data.empty() ? "unknown" : record.data, data);
  }
  record = {};
}

StartPoint resume(const StartContext& context, const VerifiedCheckpoint& chosen) {
  const config::Config saved = config_of(chosen);
  const checkpoint::format::Manifest& manifest = chosen.manifest;
  RunHistory history = history_of(manifest, saved, chosen.path);
  const bool has_new_data = begins_data(context, chosen, saved, history);
  if (has_new_data) {
    check_tokenizer(context, "--new-data", chosen.path);
    history.data_step = manifest.step;
    history.spikes = {};  // losses of other text have other levels
    history.skipped_in_a_row = 0;
  }
  check_epochs(context.config.train, chosen, history.data_step);
  check_reachable_end(chosen, context.config.train.steps);
  check_same_run(context, chosen, saved, has_new_data);
  store::Reader reader(chosen.path, chosen.manifest);
  checkpoint::ReaderSource source(reader);
  context.engine.whole_model().load_state(source, saved.train.freeze);
  drop_incomparable_record(history.validation, context, chosen, saved);
  if (!have_equal_norms(context.config, saved)) history.spikes = {};
  return {.step = manifest.step,
          .samples = has_new_data ? 0 : manifest.samples,
          .tokens = manifest.tokens,
          .checkpoint = chosen.path,
          .unreadable = chosen.unreadable,
          .history = std::move(history)};
}

// Refuses values that are not finite: the error of the first step would be less specific.
void load_finite_weights(const StartContext& context, checkpoint::Source& source,
                         const std::string& path) {
  checkpoint::FiniteSource finite(source, path);
  context.engine.whole_model().load_weights(finite);
}

void load_model_file(const StartContext& context, const std::string& path) {
  const auto file = checkpoint::format::WeightFile::open(path);
  const model::Model& model = context.model;
  const std::string note = check_fit(file, model, context.config.model.name);
  if (!note.empty() && is_leader(context)) base::log_info("{}", note);
  checkpoint::ModelFileSource source(file, model.parameters);
  load_finite_weights(context, source, path);
}

// path: a model file, a checkpoint, or a run. Returns the model file or checkpoint that was loaded.
std::string load_initial_weights(const StartContext& context, const std::string& path) {
  const std::string weights =
      ask_leader(context, [&] { return base::is_folder(path) ? store::weights_at(path) : path; });
  check_tokenizer(context, fmt::format("--init-from {}", path), weights);
  if (!leader_sees(context, [&] { return base::is_folder(weights); })) {
    load_model_file(context, weights);
    return weights;
  }
  const VerifiedCheckpoint chosen = checkpoint::verify_checkpoint(context.world, weights);
  store::Reader reader(chosen.path, chosen.manifest);
  checkpoint::ReaderSource source(reader);
  load_finite_weights(context, source, chosen.path);
  return weights;
}

// Checks that all ranks loaded the same weights: equal paths may name different files on different
// machines.
void check_loaded_weights(const StartContext& context) {
  const double norm = context.engine.parameter_norm();
  if (context.are_cpus_mixed) return;
  comm::check_agreement(context.world,
                        {{"the norm of the weights that were loaded", fmt::format("{:a}", norm)}});
}

}  // namespace

StartPoint load_start(const StartContext& context) {
  const auto begin = base::Clock::now();
  StartPoint start;
  const auto chosen = find_checkpoint(context);
  check_covers_committed(context, chosen);
  if (!chosen && context.config.checkpoint.new_data) {
    base::fail(
        ErrorKind::usage,
        "--new-data: {} has no checkpoint to resume from; check --run-dir, or omit --new-data "
        "to begin at step 0",
        context.config.run.dir);
  }
  const std::string& weights = context.config.checkpoint.init_from;
  if (chosen) {
    start = resume(context, *chosen);
  } else if (!weights.empty()) {
    start.initial_weights = load_initial_weights(context, weights);
  }
  if (chosen || !weights.empty()) check_loaded_weights(context);
  ValidationRecord& record = start.history.validation;
  if (record.best_step < 0) record.data = evaluation_data(context.data, context.config);
  start.seconds = base::seconds_since(begin);
  return start;
}

}  // namespace dtrain::train
