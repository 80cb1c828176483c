#include "dtrain/train/start_point.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file_system.h"
#include "dtrain/base/log.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/checkpoint/choose.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/checkpoint/store/commit.h"
#include "dtrain/checkpoint/store/earlier_attempt.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/assign.h"
#include "dtrain/config/file.h"
#include "dtrain/config/rows.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/optim/schedule.h"
#include "dtrain/train/model_file.h"

namespace dtrain::train {
namespace {

namespace store = checkpoint::store;
using base::ErrorKind;
using checkpoint::Chosen;

bool is_leader(const StartParts& parts) { return parts.world.rank() == 0; }

// All ranks take what rank 0 finds at a path: another job may be writing there, and file systems do
// not show all machines the same at the same time.
std::string as_leader_finds(const StartParts& parts, const std::function<std::string()>& look) {
  return comm::leader_text(parts.world, "looking for a checkpoint", look);
}

bool leader_sees(const StartParts& parts, const std::function<bool()>& look) {
  return !as_leader_finds(parts, [&] { return std::string(look() ? "yes" : ""); }).empty();
}

std::optional<Chosen> choose_newest(const StartParts& parts, const std::string& checkpoints) {
  const auto notice = [](std::string_view text) { base::log_warning("{}", text); };
  const std::string earlier = as_leader_finds(parts, [&] {
    const std::string path = base::parent_folder(checkpoints) + "/config.json";
    return base::is_there(path) ? config::value_in_file(path, config::kPassedOverKey) : "";
  });
  return checkpoint::choose_newest(parts.world, checkpoints, parts.config.checkpoint.strict_resume,
                                   notice, config::passed_over_in(earlier));
}

std::optional<Chosen> find(const StartParts& parts) {
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
  if (folder.empty()) return checkpoint::choose(parts.world, from);
  auto chosen = choose_newest(parts, folder);
  if (!chosen) base::fail(ErrorKind::checkpoint, "--resume {}: the run has no checkpoint", from);
  return chosen;
}

// Steps are done again only from below a checkpoint that is passed over by name, or was by an attempt
// that has set it aside and then failed.
void check_reaches(const StartParts& parts, const std::optional<Chosen>& chosen) {
  const std::int64_t found = chosen ? chosen->manifest.step : -1;
  if (found >= parts.committed_step) return;
  const std::int64_t committed = parts.committed_step;
  if (chosen && std::ranges::find(chosen->steps, committed) != chosen->steps.end()) return;
  const std::string checkpoints = store::checkpoints_folder(parts.config.run.dir);
  const auto is_set_aside = [&] { return store::is_set_aside(checkpoints, committed); };
  if (!chosen || !leader_sees(parts, is_set_aside))
    store::refuse_below(parts.config.run.dir, found, committed);
}

config::Config config_of(const Chosen& chosen) {
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

[[noreturn]] void refuse_data(const Chosen& chosen, std::string_view key, const std::string& file,
                              std::string_view found, std::string_view saved) {
  base::fail(ErrorKind::usage,
             "cannot resume from {}: {} ({}) differs from the checkpoint's data: it has {}, the "
             "checkpoint {}; give the file as it was, or --init-from to take the weights alone",
             chosen.path, key, file, found, saved);
}

void check_same_data(const StartParts& parts, const Chosen& chosen) {
  const data::DataIdentity& now = parts.data;
  const config::DataConfig& config = parts.config.data;
  const data::DataIdentity saved = data::identity_from(chosen.manifest.data_fingerprint);
  if (data::is_without_checksum(saved.training) &&
      count_of(saved.training) == count_of(now.training)) {
    if (is_leader(parts)) {
      base::log_warning(
          "{} is of an older dtrain, which kept no checksum of its data: it may be "
          "other data than {}, of which the number of samples is equal",
          chosen.path, config.train);
    }
    return;
  }
  if (saved.training != now.training) {
    refuse_data(chosen, "data.train", config.train, now.training, saved.training);
  }
  if (saved.validation == now.validation) return;
  if (saved.validation != "none" && now.validation != "none") {
    refuse_data(chosen, "data.validation", config.validation, now.validation, saved.validation);
  }
  if (is_leader(parts)) {
    base::log_warning("resuming from {} {} validation data", chosen.path,
                      now.validation == "none" ? "without its" : "with new");
  }
}

// "the learning rate changes from A in step N to B in step N + 1": changed settings or more steps
// may raise it by orders of magnitude. Empty if the checkpoint's settings give the same rate.
std::string rate_change(const config::TrainConfig& now, const config::TrainConfig& saved,
                        std::int64_t step) {
  const optim::Schedule before = optim::schedule_of(saved);
  const double rate = optim::schedule_of(now).rate(step);
  if (step >= now.steps || rate == before.rate(step)) return {};
  return fmt::format(
      "the learning rate changes from {:.3g} in step {} to {:.3g} in step {}, where the "
      "checkpoint's settings give {:.3g}",
      before.rate(std::max<std::int64_t>(step - 1, 0)), step, rate, step + 1, before.rate(step));
}

// Its config.json would claim fewer steps than the run has taken.
void check_reachable_end(const Chosen& chosen, std::int64_t steps) {
  const std::int64_t step = chosen.manifest.step;
  if (step <= steps) return;
  base::fail(ErrorKind::usage,
             "cannot resume from {}: the run is already at step {}, beyond --steps {}; give more "
             "than {} steps to train it further, or fork it: --resume with an earlier checkpoint, "
             "and a new --run-dir",
             chosen.path, step, steps, step);
}

// No setting gives the bits of a run that an older build trained in another order of sums.
void check_rounding(const StartParts& parts, const Chosen& chosen) {
  const std::string lost = config::lost_rounding(chosen.manifest.config, chosen.path);
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

void check_same_run(const StartParts& parts, const Chosen& chosen, const config::Config& saved) {
  const Differences differences = compare_settings(parts.config, saved);
  if (!differences.refused.empty()) {
    base::fail(ErrorKind::usage,
               "cannot resume from {}: {}; give the same, or --init-from to take its weights alone",
               chosen.path, differences.refused);
  }
  check_same_data(parts, chosen);
  check_rounding(parts, chosen);
  // The settings that changed are most often why the rate does: one warning.
  const std::string change = rate_change(parts.config.train, saved.train, chosen.manifest.step);
  if (!differences.noted.empty() && is_leader(parts)) {
    base::log_warning("resuming from {} with changed settings: {}{}{}", chosen.path,
                      differences.noted, change.empty() ? "" : "; ", change);
  } else if (!change.empty() && is_leader(parts)) {
    base::log_warning("{}", change);
  }
}

// Losses of other sequences are no measure for new ones. A start that evaluates none keeps the
// record for a later one.
void drop_other_record(ValidationRecord& record, const StartParts& parts, const Chosen& chosen,
                       const config::Config& saved) {
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

StartPoint resume(const StartParts& parts, const Chosen& chosen) {
  check_reachable_end(chosen, parts.config.train.steps);
  const config::Config saved = config_of(chosen);
  check_same_run(parts, chosen, saved);
  store::Reader reader(chosen.path, chosen.manifest);
  checkpoint::ReaderSource source(reader);
  parts.engine.load_state(source, saved.train.freeze);
  RunHistory history = history_of(chosen.manifest, saved, chosen.path);
  drop_other_record(history.validation, parts, chosen, saved);
  if (!have_equal_norms(parts.config, saved)) history.spikes = {};
  return {.step = chosen.manifest.step,
          .samples = chosen.manifest.samples,
          .tokens = chosen.manifest.tokens,
          .checkpoint = chosen.path,
          .unreadable = chosen.unreadable,
          .history = std::move(history)};
}

void take_model_file(const StartParts& parts, const std::string& path) {
  const auto file = checkpoint::format::SafetensorsFile::open(path);
  const model::Model& model = parts.model;
  checkpoint::ArenaSource source(
      model.parameters, checkpoint::read_model_file(file, model.parameters, exported_buffers(model),
                                                    parts.engine.precision().master));
  parts.engine.load_weights(source);
}

// Equal shapes say nothing of what a token means.
void check_tokenizer(const StartParts& parts, const std::string& path, const std::string& weights) {
  const std::string saved = as_leader_finds(parts, [&] { return saved_tokenizer(weights); });
  if (saved.empty() || parts.tokenizer == "unknown" || saved == parts.tokenizer) return;
  base::fail(ErrorKind::usage,
             "--init-from {}: its model was trained on tokens of {}, data.train ({}) has those of "
             "{}; prepare the data with the model's tokenizer",
             path, saved, parts.config.data.train, parts.tokenizer);
}

// path: of a model file, a checkpoint, or a run whose weights are taken. Returns the file or the
// checkpoint.
std::string initialise_from(const StartParts& parts, const std::string& path) {
  const std::string weights = as_leader_finds(
      parts, [&] { return base::is_folder(path) ? store::weights_at(path) : path; });
  check_tokenizer(parts, path, weights);
  if (!leader_sees(parts, [&] { return base::is_folder(weights); })) {
    take_model_file(parts, weights);
    return weights;
  }
  const Chosen chosen = checkpoint::choose(parts.world, weights);
  store::Reader reader(chosen.path, chosen.manifest);
  checkpoint::ReaderSource source(reader);
  parts.engine.load_weights(source);
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

bool have_equal_norms(const config::Config& now, const config::Config& saved) {
  const auto compresses = config::conditions::kCompresses;
  if (!compresses(now) && !compresses(saved)) return true;
  const auto terms = [&](const config::Config& config) {
    const config::MachineConfig& machine = config.machine;
    const config::LayoutConfig& layout = config.layout;
    return std::tuple(compresses(config), machine.compress, machine.compress_warmup,
                      machine.compress_min_elements, layout.pp, layout.dp, layout.tp,
                      layout.shard_size);
  };
  return terms(now) == terms(saved);
}

Differences compare_settings(const config::Config& now, const config::Config& saved) {
  Differences differences;
  for (const config::Setting& setting : config::settings()) {
    if (!setting.is_used(config::Command::train, now)) continue;
    const config::OnResume rule = setting.on_resume(now, saved);
    const std::string ours = config::value_text(setting, now);
    const std::string theirs = config::value_text(setting, saved);
    if (ours == theirs || rule == config::OnResume::free) continue;
    std::string& text = rule == config::OnResume::fixed ? differences.refused : differences.noted;
    text += fmt::format("{}{} is {}, the checkpoint has {}", text.empty() ? "" : "; ", setting.key,
                        ours, theirs);
  }
  return differences;
}

StartPoint load_start(const StartParts& parts) {
  const auto begin = base::Clock::now();
  StartPoint start;
  const auto chosen = find(parts);
  check_reaches(parts, chosen);
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
