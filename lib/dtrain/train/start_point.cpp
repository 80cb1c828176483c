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
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/data/tokens/token_header.h"
#include "dtrain/train/internal/setting_changes.h"
#include "dtrain/train/model_file.h"

namespace dtrain::train {
namespace {

namespace store = checkpoint::store;
using base::ErrorKind;
using checkpoint::VerifiedCheckpoint;

bool is_leader(const StartParts& parts) { return parts.world.rank() == 0; }

// All ranks take what rank 0 finds at a path: another job may be writing there, and file systems do
// not show all machines the same at the same time.
std::string as_leader_finds(const StartParts& parts, const std::function<std::string()>& look) {
  return comm::leader_text(parts.world, "looking for a checkpoint", look);
}

bool leader_sees(const StartParts& parts, const std::function<bool()>& look) {
  return !as_leader_finds(parts, [&] { return std::string(look() ? "yes" : ""); }).empty();
}

std::optional<VerifiedCheckpoint> choose_newest(const StartParts& parts,
                                                const std::string& checkpoints) {
  const auto notice = [](std::string_view text) { base::log_warning("{}", text); };
  const std::string earlier = as_leader_finds(parts, [&] {
    const std::string path = base::parent_folder(checkpoints) + "/config.json";
    return base::path_exists(path) ? config::json_value_in_file(path, config::kSkippedCheckpointsKey)
                                : "";
  });
  return checkpoint::choose_newest(parts.world, checkpoints, parts.config.checkpoint.strict_resume,
                                   notice, config::skipped_checkpoints_in(earlier));
}

std::optional<VerifiedCheckpoint> find(const StartParts& parts) {
  const config::Config& config = parts.config;
  const config::Resume& resume = config.checkpoint.resume;
  const std::string& from = resume.path;
  if (resume.is_none()) return std::nullopt;
  if (resume.is_automatic()) {
    return choose_newest(parts, store::checkpoints_folder(config.run.dir));
  }
  const std::string folder = as_leader_finds(parts, [&] {
    const std::string checkpoints = store::checkpoints_folder(from);
    return base::is_folder(checkpoints) ? checkpoints : std::string();
  });
  if (folder.empty()) return checkpoint::verify_checkpoint(parts.world, from);
  auto chosen = choose_newest(parts, folder);
  if (!chosen) base::fail(ErrorKind::checkpoint, "--resume {}: the run has no checkpoint", from);
  return chosen;
}

// Steps are done again only from below a checkpoint that is passed over by name, or was by an attempt
// that has set it aside and then failed.
void check_reaches(const StartParts& parts, const std::optional<VerifiedCheckpoint>& chosen) {
  const std::int64_t found = chosen ? chosen->manifest.step : -1;
  if (found >= parts.committed_step) return;
  const std::int64_t committed = parts.committed_step;
  if (chosen && std::ranges::find(chosen->steps, committed) != chosen->steps.end()) return;
  const std::string checkpoints = store::checkpoints_folder(parts.config.run.dir);
  const auto is_quarantined = [&] { return store::is_quarantined(checkpoints, committed); };
  if (!chosen || !leader_sees(parts, is_quarantined))
    store::refuse_rollback(parts.config.run.dir, found, committed);
}

config::Config config_of(const VerifiedCheckpoint& chosen) {
  try {
    return config::from_json(chosen.manifest.config);
  } catch (const base::Error& error) {
    base::fail(ErrorKind::checkpoint, "checkpoint '{}': bad configuration: {}", chosen.path,
               error.what());
  }
}

// The number of samples, which both forms of an identity begin with.
std::string_view count_of(std::string_view identity) {
  return identity.substr(0, identity.find(' '));
}

// Whether both runs have validation data and it differs. Empty: not known.
bool is_other_validation(const std::string& saved, const std::string& now) {
  return !saved.empty() && saved != "none" && now != "none" && saved != now;
}

// Data of the checkpoint or of this run. file: empty for a share of the training data.
struct DataPart {
  const std::string& file;
  const std::string& identity;
};

[[noreturn]] void refuse_data(const VerifiedCheckpoint& chosen, std::string_view key,
                              const DataPart& saved, const DataPart& now, std::string_view advice) {
  base::fail(ErrorKind::usage,
             "cannot resume from {}: {} ({}) differs from the checkpoint's data: it has {}, the "
             "checkpoint {}; give the file as it was, {}or --init-from to take the weights alone",
             chosen.path, key, now.file, now.identity, saved.identity, advice);
}

std::string data_text(const DataPart& part, std::string_view content) {
  return fmt::format("{}{}{}", part.file, part.file.empty() ? "" : ": ", content);
}

// Shows checksums only where files and numbers of samples are equal.
SettingChange data_change(const std::string& key, const DataPart& saved, const DataPart& now) {
  const auto brief = [](const DataPart& part) {
    if (part.identity == "none") return part.identity;
    if (part.identity.starts_with("mixture")) return part.file;  // with weights
    return data_text(part, fmt::format("{} samples", count_of(part.identity)));
  };
  SettingChange change{.name = key, .saved = brief(saved), .now = brief(now)};
  if (change.saved == change.now) {
    change.saved = data_text(saved, saved.identity);
    change.now = data_text(now, now.identity);
  }
  return change;
}

// Where an older dtrain kept no checksum, an equal number of samples has to do.
bool may_be_same_data(const StartParts& parts, const VerifiedCheckpoint& chosen) {
  const data::DataIdentity saved = data::identity_from(chosen.manifest.data_fingerprint);
  const bool is_unknown = data::is_without_checksum(saved.training) &&
                          count_of(saved.training) == count_of(parts.data.training);
  if (is_unknown && is_leader(parts)) {
    base::log_warning(
        "{} is of an older dtrain, which kept no checksum of its data: it may be "
        "other data than {}, of which the number of samples is equal",
        chosen.path, parts.config.data.train);
  }
  return is_unknown;
}

// The data that differs. Without new data that is validation that the checkpoint's run lacked, or
// that this one lacks; other changes are refused.
std::vector<SettingChange> data_changes(const StartParts& parts, const VerifiedCheckpoint& chosen,
                                        const config::Config& saved_config, bool has_new_data) {
  const data::DataIdentity& now = parts.data;
  const config::DataConfig& config = parts.config.data;
  const config::DataConfig& before = saved_config.data;
  const data::DataIdentity saved = data::identity_from(chosen.manifest.data_fingerprint);
  if (!has_new_data && may_be_same_data(parts, chosen)) return {};
  constexpr std::string_view kAdvice =
      "--new-data to begin it anew with the checkpoint's model and optimizer, ";
  std::vector<SettingChange> changes;
  if (saved.training != now.training) {
    const DataPart saved_part{before.train, saved.training};
    const DataPart own_part{config.train, now.training};
    if (!has_new_data) refuse_data(chosen, "data.train", saved_part, own_part, kAdvice);
    changes.push_back(data_change("data.train", saved_part, own_part));
  }
  if (saved.validation != now.validation) {
    const DataPart saved_part{before.validation, saved.validation};
    const DataPart own_part{config.validation, now.validation};
    if (!has_new_data && is_other_validation(saved.validation, now.validation)) {
      refuse_data(chosen, "data.validation", saved_part, own_part, kAdvice);
    }
    changes.push_back(data_change("data.validation", saved_part, own_part));
  }
  return changes;
}

// With new data a run begins it at the first sample, unless it has done so: then the same command is
// a restart of that run.
bool begins_data(const StartParts& parts, const VerifiedCheckpoint& chosen,
                 const config::Config& saved, const RunHistory& history) {
  const config::Config& config = parts.config;
  if (!config.checkpoint.new_data) return false;
  const auto is_of_data = [](const SettingChange& change) {
    return change.rule == config::OnResume::needs_new_data;
  };
  const data::DataIdentity before = data::identity_from(chosen.manifest.data_fingerprint);
  const bool differs = before.training != parts.data.training ||
                       is_other_validation(before.validation, parts.data.validation) ||
                       std::ranges::any_of(setting_changes(config, saved), is_of_data);
  if (differs) return true;
  const bool is_restart = config.checkpoint.resume.is_automatic() && history.data_step > 0;
  if (!is_restart) {
    base::fail(ErrorKind::usage,
               "--new-data: --data {}, --val-data, --val-fraction, --global-batch, --seq-len and "
               "--seed are those of {}; change one of them, or omit --new-data to continue in the "
               "checkpoint's data",
               config.data.train, chosen.path);
  }
  if (is_leader(parts) && !parts.is_quiet) {
    base::log_info("--new-data: the run began this data after step {}, and continues in it",
                   history.data_step);
  }
  return false;
}

// The steps that --epochs becomes are counted from step 0.
void check_epochs(const config::TrainConfig& train, const VerifiedCheckpoint& chosen,
                  std::int64_t data_step) {
  if (train.epochs == 0 || data_step == 0) return;
  base::fail(ErrorKind::usage,
             "cannot resume from {} with --epochs {}, which counts from step 0: this data begins "
             "after step {}; give --steps",
             chosen.path, train.epochs, data_step);
}

// Its config.json would claim fewer steps than the run has taken.
void check_reachable_end(const VerifiedCheckpoint& chosen, std::int64_t steps) {
  const std::int64_t step = chosen.manifest.step;
  if (step <= steps) return;
  base::fail(ErrorKind::usage,
             "cannot resume from {}: the run is already at step {}, beyond --steps {}; give more "
             "than {} steps to train it further, or fork it: --resume with an earlier checkpoint, "
             "and a new --run-dir",
             chosen.path, step, steps, step);
}

// No setting gives the bits of a run that an older build trained in another order of sums.
void check_rounding(const StartParts& parts, const VerifiedCheckpoint& chosen) {
  const std::string lost = config::removed_rounding_setting(chosen.manifest.config, chosen.path);
  if (lost.empty()) return;
  if (parts.config.checkpoint.strict_resume) {
    base::fail(
        ErrorKind::checkpoint,
        "cannot resume from {} with --strict-resume: it was trained with {}, which dtrain no "
        "longer has, and sums are rounded otherwise without it; leave out --strict-resume to "
        "resume all the same",
        chosen.path, lost);
  }
  if (!is_leader(parts)) return;
  base::log_warning(
      "resuming from {}, which was trained with {}: dtrain no longer has it, and sums are rounded "
      "otherwise from here on",
      chosen.path, lost);
}

// One table of all that differs: a warning if results change, otherwise a note.
void report_changes(const StartParts& parts, const VerifiedCheckpoint& chosen,
                    const std::vector<SettingChange>& changes, bool has_new_data) {
  const bool is_warning = changes_results(changes);
  if (changes.empty() || !is_leader(parts) || (parts.is_quiet && !is_warning)) return;
  base::log_info("{}resuming from {} with changed settings{}:\n{}", is_warning ? "warning: " : "",
                 chosen.path, has_new_data ? ", the data from its first sample on" : "",
                 table_of(changes));
}

void check_same_run(const StartParts& parts, const VerifiedCheckpoint& chosen,
                    const config::Config& saved, bool has_new_data) {
  std::vector<SettingChange> changes = setting_changes(parts.config, saved);
  if (const Refusal refusal = refusal_of(changes, has_new_data); !refusal.changes.empty()) {
    base::fail(ErrorKind::usage,
               "cannot resume from {}: {}; give the same, {}or --init-from to take its weights "
               "alone",
               chosen.path, refusal.changes,
               refusal.needs_new_data ? "--new-data to begin the data anew, " : "");
  }
  const auto of_data = data_changes(parts, chosen, saved, has_new_data);
  check_rounding(parts, chosen);
  const auto rate = rate_change(parts.config.train, saved.train, chosen.manifest.step);
  changes.insert(changes.begin(), rate.begin(), rate.end());
  changes.insert(changes.end(), of_data.begin(), of_data.end());
  report_changes(parts, chosen, changes, has_new_data);
}

// Equal shapes say nothing of what a token means. flag: which takes the model.
void check_tokenizer(const StartParts& parts, std::string_view flag, const std::string& weights) {
  std::string saved = as_leader_finds(parts, [&] { return saved_tokenizer(weights); });
  // Models of bytes name none, and others of their vocabulary that name none are taken for such.
  const bool may_be_bytes = parts.config.model.vocab == data::kByteVocab;
  if (saved.empty() && may_be_bytes && parts.tokenizer.starts_with("sentencepiece")) {
    saved = data::identity_of(data::TokenizerKind::bytes, {});
  }
  if (saved.empty() || parts.tokenizer == "unknown" || saved == parts.tokenizer) return;
  base::fail(ErrorKind::usage,
             "{}: the model of {} was trained on tokens of {}, data.train ({}) has those of {}; "
             "prepare the data with the model's tokenizer",
             flag, weights, saved, parts.config.data.train, parts.tokenizer);
}

// Losses of other sequences are no measure for new ones. A start that evaluates none keeps the
// record for a later one.
void drop_other_record(ValidationRecord& record, const StartParts& parts,
                       const VerifiedCheckpoint& chosen, const config::Config& saved) {
  const std::string data = evaluation_data(parts.data, parts.config);
  if (record.best_step < 0 || data.empty()) return;
  const bool is_comparable = record.data.empty() ? saved.report.eval_sequences.count ==
                                                       parts.config.report.eval_sequences.count
                                                 : record.data == data;
  if (is_comparable) {
    record.data = data;
    return;
  }
  if (is_leader(parts)) {
    base::log_warning(
        "{}: its lowest validation loss, of step {}, was measured on other sequences ({}) than "
        "this launch uses ({}): it is dropped, and --patience counts anew",
        chosen.path, record.best_step, record.data.empty() ? "unknown" : record.data, data);
  }
  record = {};
}

StartPoint resume(const StartParts& parts, const VerifiedCheckpoint& chosen) {
  const config::Config saved = config_of(chosen);
  const checkpoint::format::Manifest& manifest = chosen.manifest;
  RunHistory history = history_of(manifest, saved, chosen.path);
  const bool has_new_data = begins_data(parts, chosen, saved, history);
  if (has_new_data) {
    check_tokenizer(parts, "--new-data", chosen.path);
    history.data_step = manifest.step;
    history.spikes = {};  // losses of other text are on another level
  }
  check_epochs(parts.config.train, chosen, history.data_step);
  check_reachable_end(chosen, parts.config.train.steps);
  check_same_run(parts, chosen, saved, has_new_data);
  store::Reader reader(chosen.path, chosen.manifest);
  checkpoint::ReaderSource source(reader);
  parts.engine.load_state(source, saved.train.freeze);
  drop_other_record(history.validation, parts, chosen, saved);
  if (!have_equal_norms(parts.config, saved)) history.spikes = {};
  return {.step = manifest.step,
          .samples = has_new_data ? 0 : manifest.samples,
          .tokens = manifest.tokens,
          .checkpoint = chosen.path,
          .unreadable = chosen.unreadable,
          .history = std::move(history)};
}

// Training from values that are not finite would end at the first step, which says less.
void load_finite_weights(const StartParts& parts, checkpoint::Source& source,
                         const std::string& path) {
  checkpoint::FiniteSource finite(source, path);
  parts.engine.load_weights(finite);
}

void take_model_file(const StartParts& parts, const std::string& path) {
  const auto file = checkpoint::format::WeightFile::open(path);
  const model::Model& model = parts.model;
  checkpoint::LoadedModel read = checkpoint::read_model_file(
      file, model.parameters, constants_of(model), parts.engine.precision().master);
  if (!read.note.empty() && is_leader(parts)) base::log_info("{}", read.note);
  checkpoint::ArenaSource source(model.parameters, std::move(read.weights));
  load_finite_weights(parts, source, path);
}

// path: of a model file, a checkpoint, or a run whose weights are taken. Returns the file or the
// checkpoint.
std::string initialise_from(const StartParts& parts, const std::string& path) {
  const std::string weights = as_leader_finds(
      parts, [&] { return base::is_folder(path) ? store::weights_at(path) : path; });
  check_tokenizer(parts, fmt::format("--init-from {}", path), weights);
  if (!leader_sees(parts, [&] { return base::is_folder(weights); })) {
    take_model_file(parts, weights);
    return weights;
  }
  const VerifiedCheckpoint chosen = checkpoint::verify_checkpoint(parts.world, weights);
  store::Reader reader(chosen.path, chosen.manifest);
  checkpoint::ReaderSource source(reader);
  load_finite_weights(parts, source, chosen.path);
  return weights;
}

// Equal paths may hold different files on different machines.
void check_loaded_weights(const StartParts& parts) {
  const double norm = parts.engine.parameter_norm();
  if (parts.are_cpus_mixed) return;
  comm::check_agreement(parts.world,
                        {{"the norm of the weights that were loaded", fmt::format("{:a}", norm)}});
}

}  // namespace

StartPoint load_start(const StartParts& parts) {
  const auto begin = base::Clock::now();
  StartPoint start;
  const auto chosen = find(parts);
  check_reaches(parts, chosen);
  if (!chosen && parts.config.checkpoint.new_data) {
    base::fail(
        ErrorKind::usage,
        "--new-data: {} has no checkpoint to resume from; check --run-dir, or omit --new-data "
        "to begin at step 0",
        parts.config.run.dir);
  }
  const std::string& weights = parts.config.checkpoint.init_from;
  if (chosen) {
    start = resume(parts, *chosen);
  } else if (!weights.empty()) {
    start.initial_weights = initialise_from(parts, weights);
  }
  if (chosen || !weights.empty()) check_loaded_weights(parts);
  ValidationRecord& record = start.history.validation;
  if (record.best_step < 0) record.data = evaluation_data(parts.data, parts.config);
  start.seconds = base::seconds_since(begin);
  return start;
}

}  // namespace dtrain::train
